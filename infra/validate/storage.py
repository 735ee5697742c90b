"""Rules about shared filesystems: one at /shared, and none where the system keeps its own files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error

NAME, MOUNT = "shared", "/shared"
SYSTEM = "/bin /boot /dev /etc /home /lib /lib64 /proc /root /run /sbin /sys /tmp /usr /var"


def shared(spec: ClusterSpec) -> Iterator[Issue]:
    """Environments, jobs and, without a storage `home`, homes live on the one called `shared`, on every target."""
    storage = spec.storage.get(NAME)
    if storage is None:
        message = f"there is no storage '{NAME}'; homes and environments live on it; there are: {_names(spec)}"
        yield error("no_shared", "storage", message, f"add `{NAME}: {{mount: {MOUNT}}}`")
    elif storage.mount != MOUNT:
        message = f"'{storage.mount}' is not where storage '{NAME}' belongs; allowed: {MOUNT}"
        yield error("shared_mount", f"storage.{NAME}.mount", message, f"write `mount: {MOUNT}`, or remove the line")


def system_mounts(spec: ClusterSpec) -> Iterator[Issue]:
    for name, storage in spec.storage.items():
        if "/" + storage.mount.split("/")[1] in SYSTEM.split():
            message = f"'{storage.mount}' belongs to the node's system; taken, with all below: {SYSTEM}"
            fix = f"mount it elsewhere, for example `mount: /mnt/{name}`"
            yield error("system_mount", f"storage.{name}.mount", message, fix)


def nested_mounts(spec: ClusterSpec) -> Iterator[Issue]:
    # `shared` first: where two mounts are the same, it is the other one that has to move.
    storages = sorted(spec.storage.items(), key=lambda item: item[0] != NAME)
    for (first, one), (second, two) in combinations(storages, 2):
        if f"{two.mount}/".startswith(f"{one.mount}/"):
            yield _nested(second, two.mount, first, one.mount)
        elif f"{one.mount}/".startswith(f"{two.mount}/"):
            yield _nested(first, one.mount, second, two.mount)


def _nested(name: str, mount: str, outer: str, outer_mount: str) -> Issue:
    relation = "the same as" if mount == outer_mount else "inside"
    message = f"'{mount}' is {relation} the mount of storage '{outer}' ('{outer_mount}')"
    fix = f"mount it beside the other one, for example `mount: /mnt/{name}`"
    return error("nested_mount", f"storage.{name}.mount", message, fix)


def _names(spec: ClusterSpec) -> str:
    return ", ".join(sorted(spec.storage)) or "none"
