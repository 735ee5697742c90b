"""What a change does to a cluster on AWS, where the policy of a field alone does not tell."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.catalog.lustre import size_gb
from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error
from infra.targets.aws.plan import images, machines

LUSTRE = "fsx-lustre"
_SECTION = "aws."


def shrunk(old: ClusterSpec, new: ClusterSpec) -> Iterator[Issue]:
    """FSx only grows: for less of it the engine would make an empty filesystem and remove the one with the files.
    docs.aws.amazon.com/fsx/latest/LustreGuide/managing-storage-capacity.html"""
    for name, storage in new.storage.items():
        before = old.storage.get(name)
        if before is None or (before.kind, storage.kind) != (LUSTRE, LUSTRE) or size_gb(storage) >= size_gb(before):
            continue
        message = f"{size_gb(storage)} is less than the {size_gb(before)} GB that the filesystem has; it can only grow"
        fix = f"write `size_gb: {size_gb(before)}` or more, or `make teardown` and then `make up`"
        yield error("storage_shrunk", f"storage.{name}.size_gb", message, fix)


def has_image(path: str, spec: ClusterSpec, group: str | None) -> bool:
    """Whether nodes of the group start from the image that the field names; machines that stay keep theirs."""
    field = path.removeprefix(_SECTION)
    return group is not None and images.field(machines.compute(spec.groups[group])) == field


def is_image(path: str) -> bool:
    return path in (f"{_SECTION}{field}" for field in images.FIELDS.values())
