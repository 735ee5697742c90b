"""Storages of kind `nfs`, which one of the hosts serves to the others. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from cluster.inventory import ServedFilesystem
from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error
from infra.targets.hosts.assign import assign_hosts, format_names
from infra.targets.hosts.spec import HostNfs, Hosts

KIND = "nfs"


def find_server(spec: ClusterSpec, section: Hosts) -> str | None:
    """Return the host that serves filesystems; None if none does."""
    if not any(storage.kind == KIND for storage in spec.storage.values()):
        return None
    return (section.nfs and section.nfs.server) or section.controller


def find_folder(section: Hosts) -> str:
    """Return the folder with everything that is served."""
    return (section.nfs or HostNfs()).folder


def list_served(spec: ClusterSpec, section: Hosts) -> tuple[ServedFilesystem, ...]:
    """Return what is served, each storage from a folder of its own."""
    server, folder = find_server(spec, section), find_folder(section)
    nodes = {entry.host: entry.node for entry in assign_hosts(section)}
    return tuple(
        ServedFilesystem(mount=storage.mount, node=nodes[server], folder=f"{folder}/{name}")
        for name, storage in spec.storage.items()
        if storage.kind == KIND and server
    )


def check_nfs(spec: ClusterSpec, section: Hosts) -> Iterator[Issue]:
    """Refuse a server that is not a node, a folder that is shared itself, and a server without a filesystem."""
    server, folder = find_server(spec, section), find_folder(section)
    if section.nfs and server is None:
        message = "has no effect: no storage is of kind 'nfs'"
        yield error("nfs_unused", "hosts.nfs", message, "remove it, or write `storage: {shared: {kind: nfs}}`")
        return
    hosts = [section.controller, *([section.login] if section.login else [])]
    hosts += [entry.host for entry in assign_hosts(section) if entry.role == "compute"]
    if server is not None and server not in hosts:
        message = f"'{server}' is not a host with a role; allowed: {format_names(hosts)}"
        yield error("no_such_host", "hosts.nfs.server", message, "name one of them, or remove it for the controller")
    for name, storage in spec.storage.items():
        if server and f"{folder}/".startswith(f"{storage.mount}/"):
            message = f"'{folder}' is inside the mount of storage '{name}' ('{storage.mount}')"
            yield error("nfs_folder", "hosts.nfs.folder", message, "name a folder on a disk of the server")
