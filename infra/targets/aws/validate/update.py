"""Changes to a cluster on AWS that need more than the policy of a field to judge."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.catalog.lustre import size_gb
from cluster.spec import ClusterSpec, NodeGroup
from cluster.spec.issue import Issue, error
from infra.targets.aws.plan import images, machines

LUSTRE = "fsx-lustre"
_SECTION = "aws."


def check_shrinking(old: ClusterSpec, new: ClusterSpec) -> Iterator[Issue]:
    """Report smaller filesystems: FSx only grows, so Pulumi would replace the filesystem and lose its files.

    docs.aws.amazon.com/fsx/latest/LustreGuide/managing-storage-capacity.html
    """
    for name, storage in new.storage.items():
        before = old.storage.get(name)
        if before is None or (before.kind, storage.kind) != (LUSTRE, LUSTRE) or size_gb(storage) >= size_gb(before):
            continue
        message = f"{size_gb(storage)} is less than the {size_gb(before)} GB that the filesystem has; it can only grow"
        fix = f"write `size_gb: {size_gb(before)}` or more, or `make teardown` and then `make up`"
        yield error("storage_shrunk", f"storage.{name}.size_gb", message, fix)


def names_image_of(path: str, group: NodeGroup) -> bool:
    """Return whether a field of the section names the image of a group that has none of its own."""
    return path == f"{_SECTION}{images.field(machines.compute(group))}"


def is_image_field(path: str) -> bool:
    """Return whether the path of a field names an image."""
    return path in (f"{_SECTION}{field}" for field in images.FIELDS.values())
