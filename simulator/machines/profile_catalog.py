"""Machines of the catalog with their GPU as `calibrate` measured it; a profile of another GPU is an error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from math import log
from statistics import median
from typing import Any

from simulator.collectives import Group, collective_time_s
from simulator.hardware.rates import Rates, load_fitted_rates
from simulator.hardware.system import Gpu, System
from simulator.machines.profile import CALIBRATE, Profile
from simulator.machines.profile_fit import RatedSystem, rate_system
from trainer.config.errors import ConfigError, ConfigProblem

BANDWIDTH_MIN_BYTES = 2**20
"""Smallest collective whose time shows the speed of links rather than its start-up latency."""
MEMORY_TOLERANCE = 0.1
"""Share by which the memory of GPUs of the same name may differ: drivers reserve different amounts."""


def apply_profile(profile: Profile, machines: System, per_node: int = 0) -> RatedSystem:
    """Return `machines` of the catalog with the profile's GPU and rates, with `per_node` ranks on each (0: all GPUs).

    If the profile has this number of nodes and ranks, the network is the profile's. Otherwise it is the catalog's,
    scaled by how much slower or faster the measured network was than the model of it.
    """
    check_profile(profile, machines)
    per_node = per_node or machines.gpus_per_node
    world = _nearest(profile.worlds, machines.nodes, per_node)
    measured = rate_system(profile.machine, world)
    gpu, rates = _gpu(machines.gpu, measured.system.gpu), measured.rates
    if (world["nodes"], world["per_node"]) == (machines.nodes, per_node):
        return RatedSystem(replace(machines, gpu=gpu, exchanges=measured.system.exchanges), rates)
    return RatedSystem(replace(machines, gpu=gpu), _unmeasured_rates(rates, world, machines))


def check_profile(profile: Profile, machines: System) -> None:
    """Raise ConfigError if the profile is of another GPU, or of the same GPU with a different memory size."""
    kind, device = machines.gpu.name.partition("-")[0], profile.machine["device"]
    if not is_same_gpu(kind, device):
        message = f"{device!r} in {profile.path}; allowed: {kind}, the GPU of a {machines.name}"
        raise _error("device", message)
    measured_gb, sheet_gb = profile.machine["memory_gb"], machines.gpu.memory_gb
    if abs(measured_gb / sheet_gb - 1) > MEMORY_TOLERANCE:
        allowed = f"about {sheet_gb:.0f}, the memory of a {machines.name}'s {kind}"
        message = f"{measured_gb:.0f} in {profile.path}; allowed: {allowed}"
        raise _error("memory_gb", message)


def is_same_gpu(kind: str, device: str) -> bool:
    """Return whether the driver's name of a GPU is of the catalog's type; `NVIDIA L40S` is not an l4."""
    return re.search(rf"\b{re.escape(kind)}\b", device, re.IGNORECASE) is not None


def _error(where: str, message: str) -> ConfigError:
    fix = f"leave out --profile, choose machines with that GPU, or calibrate these: {CALIBRATE}"
    return ConfigError([ConfigProblem(f"profile.machine.{where}", message, fix)])


def _nearest(worlds: Sequence[dict[str, Any]], nodes: int, per_node: int) -> dict[str, Any]:
    def distance(world: dict[str, Any]) -> tuple[float, float]:
        return abs(log(world["nodes"] / nodes)), abs(log(world["per_node"] / per_node))

    return min(worlds, key=distance)


def _gpu(sheet: Gpu, measured: Gpu) -> Gpu:
    """Return the catalog's GPU with measured speeds; name, generation and power stay, other models depend on them."""
    return replace(
        sheet,
        peak_tflops=measured.peak_tflops,
        memory_gb=measured.memory_gb,
        memory_gb_s=measured.memory_gb_s,
        multiprocessors=measured.multiprocessors,
        reached=measured.reached,
        products=measured.products,
    )


def _unmeasured_rates(rates: Rates, world: dict[str, Any], machines: System) -> Rates:
    """Return rates for an unmeasured number of ranks; what a single rank cannot show is taken from published runs."""
    published = load_fitted_rates()
    unseen = {} if world["nodes"] * world["per_node"] > 1 else {"slowed": published.slowed, "jitter": published.jitter}
    return replace(rates, links=published.links * _network_slowdown(world, machines), **unseen)


def _network_slowdown(world: dict[str, Any], machines: System) -> float:
    """Return measured over modelled time of large collectives, of those between nodes if there are any."""
    measured_on = replace(machines, nodes=world["nodes"])
    rows = [row for row in world["collectives"] if row["size"] >= BANDWIDTH_MIN_BYTES]
    across = [row for row in rows if row["ranks"] > row["per_node"]]
    ratios = [
        row["seconds"] / collective_time_s(row["op"], row["size"], Group(row["ranks"], row["per_node"]), measured_on)
        for row in across or rows
    ]
    return median(ratios) if ratios else 1.0
