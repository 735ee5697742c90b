"""Rules on shared filesystems: one must be at /shared, and none may hide files of the system."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error

NAME, MOUNT = "shared", "/shared"
SYSTEM = "/bin /boot /dev /etc /home /lib /lib64 /proc /root /run /sbin /sys /tmp /usr /var"


def check_shared(spec: ClusterSpec) -> Iterator[Issue]:
    """Require a storage `shared` at /shared: it holds environments, jobs and, without a storage `home`, homes."""
    storage = spec.storage.get(NAME)
    if storage is None:
        message = f"storage '{NAME}', which holds homes and environments, is missing; present: {_names(spec)}"
        yield error("no_shared", "storage", message, f"add `{NAME}: {{mount: {MOUNT}}}`")
    elif storage.mount != MOUNT:
        message = f"'{storage.mount}' is not allowed as the mount of storage '{NAME}'; allowed: {MOUNT}"
        yield error("shared_mount", f"storage.{NAME}.mount", message, f"write `mount: {MOUNT}`, or remove the line")


def check_system_mounts(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse mounts in folders of the operating system."""
    for name, storage in spec.storage.items():
        if "/" + storage.mount.split("/")[1] in SYSTEM.split():
            message = f"'{storage.mount}' is in a folder of the operating system; reserved: {SYSTEM}"
            fix = f"mount it elsewhere, for example `mount: /mnt/{name}`"
            yield error("system_mount", f"storage.{name}.mount", message, fix)


def check_nested_mounts(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse a mount that equals another one or is inside it."""
    # `shared` comes first, so that of two equal mounts the other one is reported.
    storages = sorted(spec.storage.items(), key=lambda item: item[0] != NAME)
    for (first_name, first), (second_name, second) in combinations(storages, 2):
        if f"{second.mount}/".startswith(f"{first.mount}/"):
            yield _nested(second_name, second.mount, first_name, first.mount)
        elif f"{first.mount}/".startswith(f"{second.mount}/"):
            yield _nested(first_name, first.mount, second_name, second.mount)


def _nested(name: str, mount: str, outer: str, outer_mount: str) -> Issue:
    relation = "the same as" if mount == outer_mount else "inside"
    message = f"'{mount}' is {relation} the mount of storage '{outer}' ('{outer_mount}')"
    fix = f"mount it next to the other one, for example `mount: /mnt/{name}`"
    return error("nested_mount", f"storage.{name}.mount", message, fix)


def _names(spec: ClusterSpec) -> str:
    return ", ".join(sorted(spec.storage)) or "none"
