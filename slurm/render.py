"""The controller's Slurm files from spec and inventory. Pure: a diff of tests/golden/slurm is its review."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from cluster.inventory import Inventory, Node, NodeSet
from cluster.spec import ClusterSpec
from slurm.hostlist import hostlist
from slurm.power import programs, topology_file

Cgroup = Literal["v1", "v2", "none"]
ETC = "/etc/slurm"

# What a node keeps for systemd, sshd and slurmd: a job that filled it would get them killed instead of itself.
RESERVE_MB = 128
RESERVE_SHARE = 0.05
_STATIC_WEIGHT, _DYNAMIC_WEIGHT = 1, 1000


@dataclass(frozen=True)
class File:
    content: str
    mode: int = 0o644
    owner: str = "root:root"


def files(inventory: Inventory, spec: ClusterSpec, *, cgroup: Cgroup, db_password: str) -> dict[str, File]:
    """Every file of the controller's /etc/slurm but the key; compute nodes fetch theirs from slurmctld."""
    context = _context(inventory, spec, cgroup)
    conf = _without(_render("slurm.conf", context), spec.slurm.extra)
    dbd = _render("slurmdbd.conf", {**context, "db_password": db_password})
    return {
        f"{ETC}/slurm.conf": File(conf),
        f"{ETC}/gres.conf": File(_render("gres.conf", context)),
        f"{ETC}/cgroup.conf": File(_render("cgroup.conf", context)),
        f"{ETC}/slurmdbd.conf": File(dbd, 0o600, "slurm:slurm"),
        **_topology(inventory),
    }


def schedulable_mb(node: Node | NodeSet) -> int:
    return node.memory_mb - max(RESERVE_MB, int(node.memory_mb * RESERVE_SHARE))


def members(of: NodeSet) -> tuple[str, ...]:
    return tuple(f"{of.group}-{number}" for number in range(1, of.count + 1))


def _topology(inventory: Inventory) -> dict[str, File]:
    """The first one, with no place known: to be written where there is none, for the sweep keeps it from then on."""
    nodes = [name for one in inventory.sets for name in members(one)]
    if not _has_topology(inventory):
        return {}
    return {f"{ETC}/{topology_file.NAME}": File(topology_file.render(nodes, {}))}


def _has_topology(inventory: Inventory) -> bool:
    """Where a fast fabric makes the way between two nodes matter."""
    return any(one.fabric != "tcp" and one.count for one in inventory.sets)


def _context(inventory: Inventory, spec: ClusterSpec, cgroup: Cgroup) -> dict[str, object]:
    sizes: list[Node | NodeSet] = [*inventory.compute, *inventory.sets]
    gpus = any(one.gpus.count for one in sizes)
    return {
        "cluster": inventory.cluster,
        "controller": inventory.controller,
        "local": inventory.target == "local",
        "cgroup": cgroup,
        "gpus": gpus,
        "simulated": any(one.gpus.count and one.gpus.kind == "simulated" for one in sizes),
        # Every job waits for it: only where there is hardware that breaks between two rounds of the health checks.
        "checked": any(one.gpus.count and one.gpus.kind == "real" for one in sizes),
        "options": spec.slurm,
        "default": spec.slurm.default_group or next(iter(spec.groups)),
        "extra": spec.slurm.extra,
        "nodes": [_node(n) for n in inventory.compute],
        "cloud": [line for one in inventory.sets for line in _cloud_nodes(one)],
        "always": hostlist(name for one in inventory.sets for name in members(one)[: one.static]),
        "programs": programs,
        "topology": _has_topology(inventory),
        "partitions": [_partition(group, inventory) for group in spec.groups],
        "gpu_groups": _gpu_groups(inventory),
    }


def _node(node: Node) -> dict[str, object]:
    return {"name": node.name, "address": node.address, **_size(node)}


def _cloud_nodes(of: NodeSet) -> list[dict[str, object]]:
    """Those that are always there first: Slurm fills nodes of a lower weight before it starts others."""
    names = members(of)
    parts = ((names[: of.static], _STATIC_WEIGHT), (names[of.static :], _DYNAMIC_WEIGHT))
    return [{"name": hostlist(part), "weight": weight, **_size(of)} for part, weight in parts if part]


def _size(of: Node | NodeSet) -> dict[str, object]:
    gres = f"gpu:{of.gpus.type}:{of.gpus.count}" if of.gpus.count else ""
    return {"cpus": of.cpus, "memory_mb": schedulable_mb(of), "gres": gres}


def _partition(group: str, inventory: Inventory) -> dict[str, object]:
    nodes = [node for node in inventory.compute if node.group == group]
    sets = [one for one in inventory.sets if one.group == group and one.count]
    names = [*(node.name for node in nodes), *(name for one in sets for name in members(one))]
    sizes: list[Node | NodeSet] = [*nodes, *sets]
    per_cpu = [schedulable_mb(one) // one.cpus for one in sizes]
    return {"name": group, "nodes": hostlist(names), "memory_per_cpu": min(per_cpu, default=0)}


def _gpu_groups(inventory: Inventory) -> list[dict[str, str]]:
    groups: dict[tuple[str, str], list[str]] = {}
    for node in inventory.compute:
        if node.gpus.count:
            groups.setdefault((node.gpus.type, hostlist(node.gpus.devices)), []).append(node.name)
    for one in inventory.sets:
        if one.gpus.count and one.count:
            groups.setdefault((one.gpus.type, hostlist(one.gpus.devices)), []).extend(members(one))
    return [{"type": kind, "devices": devices, "nodes": hostlist(names)} for (kind, devices), names in groups.items()]


def _render(name: str, context: dict[str, object]) -> str:
    loader = FileSystemLoader(Path(__file__).parent / "templates")
    # Not HTML: nothing to escape.
    environment = Environment(  # noqa: S701
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    return environment.get_template(f"{name}.j2").render(context)


def _without(conf: str, extra: dict[str, str]) -> str:
    """Drops our own setting of a key that slurm.extra sets: Slurm warns about a key given twice."""
    overridden = {key.lower() for key in extra}
    head, mark, tail = conf.partition("# slurm.extra of the stack\n")
    kept = [line for line in head.splitlines(keepends=True) if line.partition("=")[0].lower() not in overridden]
    return "".join(kept) + mark + tail
