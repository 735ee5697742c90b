"""Judge hosts by each other: a machine listed twice, connections between hosts, shared filesystems. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address

from bootstrap.steps.nfs import PORT as NFS_PORT
from cluster.spec import ClusterSpec
from infra.targets.hosts.assign import Assignment
from infra.targets.hosts.login import resolve_address
from infra.targets.hosts.nfs import find_folder, find_server
from infra.targets.hosts.preflight.facts import MachineFacts, Peer, Probe
from infra.targets.hosts.preflight.judge import SUPPORTED, Problem
from infra.targets.hosts.preflight.topology import choose_tool
from infra.targets.hosts.spec import Hosts

SLURMCTLD_PORT, SLURMD_PORT = 6817, 6818
# Jobs and srun listen on ports that the kernel chooses, so a high one stands for all of them.
HIGH_PORT = 48999
NETWORK_FILESYSTEMS = ("nfs", "nfs4", "lustre", "gpfs", "wekafs", "beegfs", "ceph", "glusterfs", "9p", "cifs", "smb3")
Facts = Mapping[str, MachineFacts]


def build_probe(spec: ClusterSpec, section: Hosts, assigned: tuple[Assignment, ...], host: str) -> Probe:
    """Return what a host has to read: it connects to the controller and to the next host, the controller to all."""
    addresses = {entry.host: resolve_address(section.machines[entry.host]) for entry in assigned}
    controller = section.controller
    if host == controller:
        pairs = [(entry.host, SLURMD_PORT) for entry in assigned if entry.role == "compute"]
    else:
        order = [entry.host for entry in assigned if entry.host != controller]
        following = order[(order.index(host) + 1) % len(order)]
        pairs = [(controller, SLURMCTLD_PORT), *([(following, HIGH_PORT)] if following != host else [])]
    server = find_server(spec, section)
    if server not in (None, host):
        pairs.append((server, NFS_PORT))
    return Probe(
        mounts=tuple(storage.mount for storage in spec.storage.values()),
        users={name: user.uid for name, user in spec.users.items()},
        names=tuple(entry.node for entry in assigned),
        peers=tuple(Peer(peer, addresses[peer], port) for peer, port in pairs),
        folders=(find_folder(section),) if server == host else (),
        neighbors=choose_tool(spec, assigned, host),
    )


def judge_across(section: Hosts, assigned: tuple[Assignment, ...], facts: Facts) -> Iterator[tuple[str, Problem]]:
    """Yield host and problem, for all hosts that have answered."""
    yield from _check_machines(section, facts)
    yield from _check_systems(section, facts)
    yield from _check_peers(facts)
    yield from _check_hostnames(section, assigned, facts)
    yield from _check_names(section, assigned, facts)
    yield from _check_filesystems(facts)


def _check_machines(section: Hosts, facts: Facts) -> Iterator[tuple[str, Problem]]:
    first: dict[tuple[str, ...], str] = {}
    for host, read in facts.items():
        if read.machine and read.machine in first:
            other = first[read.machine]
            addresses = f"{section.machines[host].address} and {section.machines[other].address}"
            message = f"is the same machine as '{other}': {addresses} are both its addresses"
            yield host, Problem("error", "host_twice", message, "remove one of the two")
        first.setdefault(read.machine, host)


def _check_systems(section: Hosts, facts: Facts) -> Iterator[tuple[str, Problem]]:
    """Refuse other systems than the controller's: it builds Slurm's packages for all."""
    leader = facts.get(section.controller)
    for host, read in facts.items():
        supported = leader is not None and {read.os, leader.os} <= set(SUPPORTED)
        if leader and supported and (read.os, read.arch) != (leader.os, leader.arch):
            message = f"runs {read.os} ({read.arch}), the controller {leader.os} ({leader.arch}); allowed: the same"
            fix = "install the same system: the controller builds Slurm's packages for all hosts"
            yield host, Problem("error", "host_os_mixed", message, fix)


def _check_hostnames(section: Hosts, assigned: tuple[Assignment, ...], facts: Facts) -> Iterator[tuple[str, Problem]]:
    """Refuse a host that calls itself like another node: its own name would lead to that node."""
    hosts = {entry.node: entry.host for entry in assigned}
    for host, read in facts.items():
        other = hosts.get(read.hostname, host)
        if other != host:
            own, others = (section.machines[name].address for name in (host, other))
            message = f"{own} has the host name '{read.hostname}', which is that of a node: host '{other}' at {others}"
            fix = "change its host name, or rename the group: nodes are called controller, login and GROUP-1, GROUP-2"
            yield host, Problem("error", "host_name_taken", message, fix)


def _check_peers(facts: Facts) -> Iterator[tuple[str, Problem]]:
    for host, read in facts.items():
        for peer, result in read.peers.items():
            # A host that did not answer us is reported once, not by each of its peers.
            if result in ("open", "closed") or peer.host not in facts:
                continue
            if result == "unresolved":
                message = f"cannot resolve '{peer.address}', the address of '{peer.host}'"
                fix = f"add it to DNS, or write `cluster_address` with the IPv4 address of '{peer.host}'"
                yield host, Problem("error", "host_name", message, fix)
                continue
            port = f"port {peer.port}" if peer.port != HIGH_PORT else f"port {peer.port} (jobs use ports like this)"
            message = f"cannot reach '{peer.host}' ({peer.address}) at {port}: {_describe(result)}"
            yield host, Problem("error", "host_blocked", message, _open_firewall(peer.host, facts[peer.host]))


def _check_names(section: Hosts, assigned: tuple[Assignment, ...], facts: Facts) -> Iterator[tuple[str, Problem]]:
    """Warn about names of nodes that mean other machines today; /etc/hosts will say otherwise."""
    addresses = {entry.node: resolve_address(section.machines[entry.host]) for entry in assigned}
    for host, read in facts.items():
        for name, address in read.resolved.items():
            expected = addresses.get(name, "")
            if _is_address(expected) and address != expected and not IPv4Address(address).is_loopback:
                message = f"the name '{name}' is {address} here; the cluster makes it {expected} in /etc/hosts"
                yield (
                    host,
                    Problem("warning", "host_name_taken", message, "check that nothing there needs the old meaning"),
                )


def _check_filesystems(facts: Facts) -> Iterator[tuple[str, Problem]]:
    """Refuse mounts that are not shared; the host that serves a filesystem has it as a local one."""
    paths = dict.fromkeys(path for read in facts.values() for path in read.mounts)
    for path in paths:
        mounts = {host: read.mounts[path] for host, read in facts.items() if path in read.mounts}
        local = [host for host, mount in mounts.items() if not _is_network(mount.kind)]
        for host in local if len(local) > 1 else ():
            message = f"{path} is a local filesystem ({mounts[host].kind} on {mounts[host].source}), not a shared one"
            fix = f"mount the same network filesystem at {path} on every host; only its server may have it locally"
            yield host, Problem("error", "host_mount_local", message, fix)
        sources = sorted({mount.source for host, mount in mounts.items() if host not in local})
        for host in mounts if len(sources) > 1 else ():
            if host not in local:
                message = f"{path} comes from {mounts[host].source}; the hosts mount it from {', '.join(sources)}"
                fix = "check that all are the same filesystem, or mount the same source everywhere"
                yield host, Problem("warning", "host_mounts_differ", message, fix)


def _describe(result: str) -> str:
    return "no answer" if result == "silent" else "no route, or rejected"


def _open_firewall(host: str, facts: MachineFacts) -> str:
    programs = sorted({"firewalld", "ufw"} & facts.active) or sorted(facts.filters)
    named = f" ({', '.join(programs)} is active there)" if programs else ""
    return f"allow all TCP ports between the hosts in the firewall of '{host}'{named} and in the network"


def _is_network(kind: str) -> bool:
    return kind in NETWORK_FILESYSTEMS or kind.startswith("fuse.")


def _is_address(text: str) -> bool:
    try:
        IPv4Address(text)
    except ValueError:
        return False
    return True
