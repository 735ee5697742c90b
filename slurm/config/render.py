"""Render the controller's Slurm files from spec and inventory; golden copies are in tests/golden/slurm."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from cluster.inventory import Inventory, Node, NodeSet
from cluster.names import members
from cluster.spec import ClusterSpec, Partition, SlurmOptions
from slurm.config import topology
from slurm.config.blocks import render_blocks, select_ultraservers
from slurm.containers import installed as containers
from slurm.health.check import SLURMD_LIMIT_S
from slurm.health.filesystem import PRIVATE_FOLDERS
from slurm.hostlist import hostlist
from slurm.power import install

Cgroup = Literal["v1", "v2", "none"]
ETC = "/etc/slurm"

# Memory reserved for systemd, sshd and slurmd: otherwise a job that fills the node would get these killed.
RESERVE_MB = 128
RESERVE_SHARE = 0.05
# What Slurm shows to others only if they are admins. Nodes, partitions, reservations and events stay visible, because
# they show why a job waits.
PRIVATE_DATA = "accounts,jobs,usage,users"
# Jobs that slurmctld takes at most, each of which needs a few KB of its memory.
MAX_JOBS = 100_000
# Slurm fills nodes of a lower weight first.
_STATIC_WEIGHT, _DYNAMIC_WEIGHT = 1, 1000


@dataclass(frozen=True)
class File:
    """A file to write on the controller."""

    content: str
    mode: int = 0o644
    owner: str = "root:root"


def render_files(inventory: Inventory, spec: ClusterSpec, *, cgroup: Cgroup, db_password: str) -> dict[str, File]:
    """Return every file of the controller's /etc/slurm except the key; compute nodes fetch theirs from slurmctld."""
    context = _make_context(inventory, spec, cgroup)
    conf = _drop_overridden(_render("slurm.conf", context), spec.slurm.extra)
    dbd = _render("slurmdbd.conf", {**context, "db_password": db_password})
    return {
        f"{ETC}/slurm.conf": File(conf),
        f"{ETC}/gres.conf": File(_render("gres.conf", context)),
        f"{ETC}/cgroup.conf": File(_render("cgroup.conf", context)),
        f"{ETC}/job_container.conf": File(_render("job_container.conf", context)),
        f"{ETC}/oci.conf": File(_render("oci.conf", context)),
        f"{ETC}/slurmdbd.conf": File(dbd, 0o600, "slurm:slurm"),
        **_render_first_topology(inventory),
    }


def schedulable_mb(node: Node | NodeSet) -> int:
    """Return the memory that jobs may use, in MB."""
    return node.memory_mb - max(RESERVE_MB, int(node.memory_mb * RESERVE_SHARE))


def launched_nodes(inventory: Inventory) -> list[str]:
    """Return the names of all nodes in the inventory's node sets."""
    return [name for nodes in inventory.sets for name in members(nodes.group, nodes.count)]


def _render_first_topology(inventory: Inventory) -> dict[str, File]:
    """Return the topology file; nodes that are launched have no place yet, and the sweep adds them to a tree later."""
    match _choose_topology(inventory):
        case "block":
            text = render_blocks(select_ultraservers(inventory.sets))
        case "tree":
            places = {node.name: node.place for node in inventory.compute if node.place}
            text = topology.render_topology(
                [*(node.name for node in inventory.compute), *launched_nodes(inventory)], places
            )
        case None:
            return {}
    return {f"{ETC}/{topology.NAME}": File(text)}


def _choose_topology(inventory: Inventory) -> Literal["block", "tree"] | None:
    """Return Slurm's model of the network: blocks for UltraServers, switches where they are or will be known."""
    if select_ultraservers(inventory.sets):
        return "block"
    placed = any(node.place for node in inventory.compute)
    return "tree" if placed or any(nodes.fabric != "tcp" and nodes.count for nodes in inventory.sets) else None


def _make_context(inventory: Inventory, spec: ClusterSpec, cgroup: Cgroup) -> dict[str, object]:
    sizes: list[Node | NodeSet] = [*inventory.compute, *inventory.sets]
    static = [name for nodes in inventory.sets for name in members(nodes.group, nodes.static)]
    return {
        "cluster": inventory.cluster,
        "controller": inventory.controller,
        # slurmctld and slurmdbd start only on the host that has this name.
        "controller_host": _name_host(inventory.controller),
        "single_host": inventory.single_host,
        "cgroup": cgroup,
        "gpus": any(size.gpus.count for size in sizes),
        "simulated": any(size.gpus.count and size.gpus.kind == "simulated" for size in sizes),
        # Every job waits for the prolog, so only nodes whose hardware can break between two health checks have one.
        "checked": any(size.gpus.count and size.gpus.kind == "real" for size in sizes),
        "release": spec.software.slurm,
        "options": spec.slurm,
        "max_jobs": MAX_JOBS,
        "node_timeout_s": spec.slurm.node_timeout_s(single_host=inventory.single_host),
        "health_limit_s": SLURMD_LIMIT_S,
        "default": spec.slurm.default_group or next(iter(spec.groups)),
        "extra": spec.slurm.extra,
        "private_data": _choose_private_data(spec.slurm.extra),
        "private_folders": PRIVATE_FOLDERS,
        "container_program": containers.PROGRAM,
        "nodes": [_describe_node(node) for node in inventory.compute],
        "cloud": [line for nodes in inventory.sets for line in _describe_set(nodes)],
        "static": hostlist(static),
        "programs": install,
        "topology": _choose_topology(inventory),
        "partitions": [
            *(_describe_partition(group, Partition(groups=(group,)), spec.slurm, inventory) for group in spec.groups),
            *(_describe_partition(name, each, spec.slurm, inventory) for name, each in spec.slurm.partitions.items()),
        ],
        "gpu_groups": _list_gpu_groups(inventory),
    }


def _name_host(node: Node) -> str:
    return node.adopted.hostname.partition(".")[0] if node.adopted else node.name


def _choose_private_data(extra: dict[str, str]) -> str:
    """Return the value that slurm.extra sets, so that slurmctld and slurmdbd agree, or the default."""
    return next((value for key, value in extra.items() if key.lower() == "privatedata"), PRIVATE_DATA)


def _describe_node(node: Node) -> dict[str, object]:
    return {"name": node.name, "address": node.address, **_describe_size(node)}


def _describe_set(nodes: NodeSet) -> list[dict[str, object]]:
    """Return the static nodes and the others; weights make Slurm fill static nodes before it starts others."""
    names = members(nodes.group, nodes.count)
    parts = ((names[: nodes.static], _STATIC_WEIGHT), (names[nodes.static :], _DYNAMIC_WEIGHT))
    return [{"name": hostlist(part), "weight": weight, **_describe_size(nodes)} for part, weight in parts if part]


def _describe_size(nodes: Node | NodeSet) -> dict[str, object]:
    gres = f"gpu:{nodes.gpus.type}:{nodes.gpus.count}" if nodes.gpus.count else ""
    return {"cpus": _describe_cpus(nodes), "memory_mb": schedulable_mb(nodes), "gres": gres}


def _describe_cpus(nodes: Node | NodeSet) -> str:
    """Return CPUs and, where known, sockets: Slurm then places a task on one socket and never splits a core."""
    if not isinstance(nodes, NodeSet) or not nodes.sockets:
        return f"CPUs={nodes.cpus}"
    per_socket, threads = nodes.cores // nodes.sockets, nodes.cpus // nodes.cores
    return f"CPUs={nodes.cpus} Sockets={nodes.sockets} CoresPerSocket={per_socket} ThreadsPerCore={threads}"


def _describe_partition(
    name: str, partition: Partition, options: SlurmOptions, inventory: Inventory
) -> dict[str, object]:
    nodes = [node for node in inventory.compute if node.group in partition.groups]
    sets = [node_set for node_set in inventory.sets if node_set.group in partition.groups and node_set.count]
    names = [*(node.name for node in nodes), *(name for of in sets for name in members(of.group, of.count))]
    sizes: list[Node | NodeSet] = [*nodes, *sets]
    per_cpu = [schedulable_mb(size) // size.cpus for size in sizes]
    limits = {
        "PriorityTier": partition.priority
        if partition.priority != Partition.model_fields["priority"].default
        else None,
        "MaxNodes": partition.max_nodes,
        "AllowAccounts": ",".join(partition.accounts) or None,
        # A node has one IMEX service, which belongs to the job that started it: no two jobs may share a node.
        "OverSubscribe": "EXCLUSIVE" if select_ultraservers(sets) else None,
    }
    return {
        "name": name,
        "nodes": hostlist(names),
        "memory_per_cpu": min(per_cpu, default=0),
        "default_time": partition.default_time or options.default_time,
        "max_time": partition.max_time or options.max_time,
        "limits": {key: value for key, value in limits.items() if value is not None},
    }


def _list_gpu_groups(inventory: Inventory) -> list[dict[str, str]]:
    """Return the lines of gres.conf: the nodes that have the same kind of GPU and the same devices."""
    groups: dict[tuple[str, str], list[str]] = {}
    for node in inventory.compute:
        if node.gpus.count:
            groups.setdefault((node.gpus.type, hostlist(node.gpus.devices)), []).append(node.name)
    for nodes in inventory.sets:
        if nodes.gpus.count and nodes.count:
            key = (nodes.gpus.type, hostlist(nodes.gpus.devices))
            groups.setdefault(key, []).extend(members(nodes.group, nodes.count))
    return [{"type": kind, "devices": devices, "nodes": hostlist(names)} for (kind, devices), names in groups.items()]


def _render(name: str, context: dict[str, object]) -> str:
    return _templates().get_template(f"{name}.j2").render(context)


@cache
def _templates() -> Environment:
    """Return the templates; each is compiled once, which takes much longer than to render it."""
    return Environment(
        # Only HTML is escaped, which none of the files is.
        autoescape=select_autoescape(),
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _drop_overridden(conf: str, extra: dict[str, str]) -> str:
    """Drop muster's setting of each key that slurm.extra sets: Slurm warns about a key that is set twice."""
    overridden = {key.lower() for key in extra}
    head, mark, tail = conf.partition("# slurm.extra of the stack\n")
    lines = [line for line in head.splitlines(keepends=True) if line.partition("=")[0].lower() not in overridden]
    return "".join(lines) + mark + tail
