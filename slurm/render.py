"""The controller's Slurm files from spec and inventory. Pure: a diff of tests/golden/slurm is its review."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from infra.inventory import Inventory, Node
from infra.spec import ClusterSpec

Cgroup = Literal["v1", "v2", "none"]
ETC = "/etc/slurm"

# What a node keeps for systemd, sshd and slurmd: a job that filled it would get them killed instead of itself.
RESERVE_MB = 128
RESERVE_SHARE = 0.05


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
    }


def schedulable_mb(node: Node) -> int:
    return node.memory_mb - max(RESERVE_MB, int(node.memory_mb * RESERVE_SHARE))


def hostlist(names: Iterable[str]) -> str:
    """Slurm's short form: gpu-1, gpu-2, gpu-4 become gpu-[1-2,4]; works for device paths, too."""
    numbered: dict[str, list[int]] = {}
    plain: list[str] = []
    for name in names:
        match = re.fullmatch(r"(.*?)(0|[1-9]\d*)", name)
        if match:
            numbered.setdefault(match[1], []).append(int(match[2]))
        else:
            plain.append(name)
    return ",".join([*plain, *(_brackets(prefix, sorted(set(ns))) for prefix, ns in numbered.items())])


def _context(inventory: Inventory, spec: ClusterSpec, cgroup: Cgroup) -> dict[str, object]:
    gpus = any(n.gpus.count for n in inventory.compute)
    return {
        "cluster": inventory.cluster,
        "controller": inventory.controller,
        "local": inventory.target == "local",
        "cgroup": cgroup,
        "gpus": gpus,
        "simulated": any(n.gpus.count and n.gpus.kind == "simulated" for n in inventory.compute),
        "options": spec.slurm,
        "default": spec.slurm.default_group or next(iter(spec.groups)),
        "extra": spec.slurm.extra,
        "nodes": [_node(n) for n in inventory.compute],
        "partitions": [_partition(g, [n for n in inventory.compute if n.group == g]) for g in spec.groups],
        "gpu_groups": _gpu_groups(inventory.compute),
    }


def _node(node: Node) -> dict[str, object]:
    gres = f"gpu:{node.gpus.type}:{node.gpus.count}" if node.gpus.count else ""
    return {
        "name": node.name,
        "address": node.address,
        "cpus": node.cpus,
        "memory_mb": schedulable_mb(node),
        "gres": gres,
    }


def _partition(group: str, nodes: Sequence[Node]) -> dict[str, object]:
    return {
        "name": group,
        "nodes": hostlist(n.name for n in nodes),
        "memory_per_cpu": min((schedulable_mb(n) // n.cpus for n in nodes), default=0),
    }


def _gpu_groups(nodes: Sequence[Node]) -> list[dict[str, str]]:
    groups: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        if node.gpus.count:
            groups.setdefault((node.gpus.type, hostlist(node.gpus.devices)), []).append(node.name)
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


def _brackets(prefix: str, numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"{prefix}{numbers[0]}"
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])]
    return f"{prefix}[{','.join(str(r[0]) if len(r) == 1 else f'{r[0]}-{r[-1]}' for r in runs)}]"
