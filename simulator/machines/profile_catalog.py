"""Machines of the catalog with their GPU as `calibrate` measured it; a profile of another GPU is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import log
from statistics import median
from typing import Any

from simulator.collectives import Group, time_s
from simulator.hardware.rates import Rates, fitted
from simulator.hardware.system import Gpu, System
from simulator.machines.profile import CALIBRATE, Profile
from simulator.machines.profile_fit import Calibrated, calibrated
from trainer.config.errors import ConfigError, ConfigProblem

LARGE = 2**20
"""Bytes from which on an exchange says something about links, not about how it starts."""
MEMORY = 0.1
"""By what share the memory of GPUs of one name may differ: what a driver keeps for itself."""


def joined(profile: Profile, machines: System, per_node: int = 0) -> Calibrated:
    """`machines` of the catalog, `per_node` ranks on each (0: all GPUs), as measured.

    The network is the profile's where so many nodes and ranks were measured; else the catalog's, by as much slower or
    quicker as the measured ones were.
    """
    check(profile, machines)
    per_node = per_node or machines.gpus_per_node
    world = _nearest(profile.worlds, machines.nodes, per_node)
    found = calibrated(profile.machine, world)
    gpu, rates = _gpu(machines.gpu, found.system.gpu), found.rates
    if (world["nodes"], world["per_node"]) == (machines.nodes, per_node):
        return Calibrated(replace(machines, gpu=gpu, exchanges=found.system.exchanges), rates)
    return Calibrated(replace(machines, gpu=gpu), _beyond(rates, world, machines))


def check(profile: Profile, machines: System) -> None:
    """ConfigError where the GPU is another one, or the same with other memory."""
    kind, device = machines.gpu.name.partition("-")[0], profile.machine["device"]
    if not same_gpu(kind, device):
        message = f"{device!r} in {profile.path}; allowed: {kind}, as a {machines.name} has"
        raise _refused("device", message)
    has, wanted = profile.machine["memory_gb"], machines.gpu.memory_gb
    if abs(has / wanted - 1) > MEMORY:
        message = f"{has:.0f} in {profile.path}; allowed: {wanted:.0f} or nearly so, as the {kind} of a {machines.name}"
        raise _refused("memory_gb", message)


def same_gpu(kind: str, device: str) -> bool:
    """Whether the driver's name of a GPU is of the catalog's kind: `NVIDIA L40S` is no l4."""
    return re.search(rf"\b{re.escape(kind)}\b", device, re.IGNORECASE) is not None


def _refused(where: str, message: str) -> ConfigError:
    fix = f"leave --profile out, name machines with that GPU, or calibrate there: {CALIBRATE}"
    return ConfigError([ConfigProblem(f"profile.machine.{where}", message, fix)])


def _nearest(worlds: Sequence[dict[str, Any]], nodes: int, per_node: int) -> dict[str, Any]:
    def apart(world: dict[str, Any]) -> tuple[float, float]:
        return abs(log(world["nodes"] / nodes)), abs(log(world["per_node"] / per_node))

    return min(worlds, key=apart)


def _gpu(sheet: Gpu, measured: Gpu) -> Gpu:
    """Name, generation and power are the catalog's: NCCL, intervals and electricity go by them."""
    return replace(
        sheet,
        peak_tflops=measured.peak_tflops,
        memory_gb=measured.memory_gb,
        memory_gb_s=measured.memory_gb_s,
        multiprocessors=measured.multiprocessors,
        reached=measured.reached,
        products=measured.products,
    )


def _beyond(rates: Rates, world: dict[str, Any], machines: System) -> Rates:
    """For numbers of ranks that nobody measured; what one rank alone cannot show is as on other machines."""
    usual = fitted()
    shown = {} if world["nodes"] * world["per_node"] > 1 else {"slowed": usual.slowed, "jitter": usual.jitter}
    return replace(rates, links=usual.links * _slower(world, machines), **shown)


def _slower(world: dict[str, Any], machines: System) -> float:
    """Times that measured exchanges take over modelled ones; between nodes where any were."""
    there = replace(machines, nodes=world["nodes"])
    rows = [row for row in world["collectives"] if row["size"] >= LARGE]
    across = [row for row in rows if row["ranks"] > row["per_node"]]
    shares = [
        row["seconds"] / time_s(row["op"], row["size"], Group(row["ranks"], row["per_node"]), there)
        for row in across or rows
    ]
    return median(shares) if shares else 1.0
