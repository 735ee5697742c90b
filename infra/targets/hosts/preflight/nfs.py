"""Judge whether hosts can serve and mount what one of them serves by NFS. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from infra.targets.hosts.nfs import KIND, find_folder, find_server
from infra.targets.hosts.preflight.judge import SHARED_FREE_MB, Problem, Subject
from infra.targets.hosts.spec import hosts_section

GANESHA = "nfs-ganesha"


def check_nfs(subject: Subject) -> Iterator[Problem]:
    """Require free space and no other server on the host that serves, and an NFS client on the others."""
    section, facts = hosts_section(subject.spec), subject.facts
    server = find_server(subject.spec, section) if section else None
    if section is None or server is None or subject.ours:
        return
    if subject.assigned.host == server:
        folder = find_folder(section)
        free = facts.free_mb.get(folder)
        if free is not None and free < SHARED_FREE_MB:
            message = f"{folder} has {free / 1000:.1f} GB free; allowed: {SHARED_FREE_MB / 1000:.0f} GB or more"
            fix = "free space there, or name a folder on a larger disk with `hosts.nfs.folder`"
            yield Problem("error", "host_disk", message, fix)
        if GANESHA in facts.active:
            message = f"{GANESHA} runs already, and muster would replace its configuration"
            fix = "use its export with `kind: existing`, or name another host with `hosts.nfs.server`"
            yield Problem("error", "host_nfs_server", message, fix)
    elif not facts.nfs:
        message = "its kernel cannot mount NFS (there is no module nfsv4)"
        yield Problem("error", "host_nfs_client", message, "install the distribution's own kernel and its modules")
    for storage in subject.spec.storage.values():
        mount = facts.mounts.get(storage.mount)
        if storage.kind == KIND and mount:
            message = f"{mount.source} is mounted at {storage.mount}; allowed: nothing, because muster mounts it"
            fix = "unmount it, or write `kind: existing` to use it"
            yield Problem("error", "host_mount", message, fix)
