"""Fit the constants of collectives to measured ones by coordinate descent, starting from prior estimates.

The loss is an absolute error with a ceiling, weighted by system, and the times are minima over algorithms: it has no
useful gradient, so a least-squares solver does not apply.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import log
from typing import Any

from simulator.collectives.algorithms import list_candidates
from simulator.collectives.constants import Constants, parse_constants
from simulator.collectives.fabric import build_fabric, classify_link, classify_network, count_domains
from simulator.collectives.group import PROCESS_PER_GPU, Group, LaunchOverhead, Op
from simulator.hardware.system import System

MAX_ERROR = 0.4
"""Larger errors count as this much: a broken machine says nothing about the others."""
HALF_WEIGHT_ROWS = 4
"""Number of rows at which a system has half the weight of a system with a long curve."""
STEP_SIZES = (0.12, 0.05, 0.02)
"""Relative changes of a constant that are tried, coarse to fine."""
SHARE_SUFFIXES = ("share", "ring", "nvls", "power")
"""Last words of the names whose values stay below MAX_SHARE."""
MAX_SHARE = 0.98
"""No link delivers its whole rate: every packet has a header."""
PRIOR_SPREAD = {"us": 0.7, "most": 0.5}
"""Standard deviation of a constant around its prior, in logarithms, by the last word of its name."""
SHARE_PRIOR_SPREAD = 0.1
"""The same for constants that PRIOR_SPREAD does not list."""
PRIOR_WEIGHT = 0.06
"""Cost of a constant one standard deviation off its prior, in units of one system's error.

It keeps a few rows from moving a constant far.
"""
PRIOR_CONSTANTS: dict[str, Any] = {
    "launch_us": 5,
    "peer_us": 2,
    "ll128_share": 0.92,
    "nvls_tree_share": 0.95,
    "many_tree_share": 0.85,
    "many_nvls_share": 0.95,
    "all_to_all_share": 0.9,
    "channel_gb_s": 20,
    "waits": {
        "in_ring": {"power": 0.7, "most": 2},
        "in_switch": {"power": 0.7, "most": 2},
        "out_tree": {"power": 0.7, "most": 2},
        "out_ring": {"power": 0.85, "most": 1},
    },
    "links": {
        "nvlink2": {"ring": 0.8, "nvls": 0},
        "nvlink3": {"ring": 0.8, "nvls": 0},
        "nvlink4": {"ring": 0.8, "nvls": 0.6},
        "nvlink5": {"ring": 0.8, "nvls": 0.55, "switch_us": 10},
        "pcie": {"ring": 0.8, "nvls": 0},
    },
    "networks": {
        "efa1": {"share": 0.9, "hop_us": 60, "protocols": ["Simple"]},
        "efa2": {"share": 0.9, "hop_us": 20},
        "efa3": {"share": 0.9, "hop_us": 20},
        "efa4": {"share": 0.9, "hop_us": 20},
        "infiniband": {"share": 0.95, "hop_us": 4},
        "infiniband_hdr": {"share": 0.95, "hop_us": 4},
        "infiniband_edr": {"share": 0.85, "hop_us": 4},
        "roce": {"share": 0.95, "hop_us": 6},
        "slingshot": {"share": 0.9, "hop_us": 30},
        "tcpx": {"share": 0.75, "hop_us": 500, "protocols": ["Simple"], "without": ["tree", "nvls_tree"]},
        "tcpxo": {"share": 0.9, "hop_us": 50, "protocols": ["LL", "Simple"], "without": ["nvls_tree"]},
        "ethernet": {"share": 0.85, "hop_us": 40},
        "loopback": {"share": 1, "hop_us": 40},
    },
}
"""Values assumed before any measurement: data sheets and round figures of NCCL's and the plugins' authors."""
CONSTANTS_OF_EVERY_OP = ("launch_us", "ll128_share")
CONSTANTS_BY_OP: dict[Op, tuple[str, ...]] = {
    "all_reduce": ("nvls_tree_share", "many_tree_share", "many_nvls_share"),
    "all_gather": ("channel_gb_s",),
    "reduce_scatter": ("channel_gb_s",),
    "broadcast": ("channel_gb_s",),
    "reduce": ("channel_gb_s",),
    "all_to_all": ("peer_us", "all_to_all_share"),
}
"""The shared constants that only some collectives depend on."""
ErrorCache = dict[tuple[Hashable, ...], list[float]]
"""Errors of a collective by the values of the constants that it depends on."""


@dataclass(frozen=True)
class MeasuredCollective:
    """A curve of measured times: one collective of one group on one system."""

    op: Op
    group: Group
    system: System
    sizes: tuple[float, ...]
    """Bytes of the full array, per point."""
    times_us: tuple[float, ...]
    launch: LaunchOverhead = PROCESS_PER_GPU
    source: str = ""


def fit_constants(collectives: Sequence[MeasuredCollective], start: dict[str, Any] = PRIOR_CONSTANTS) -> dict[str, Any]:
    """Return the constants with the least cost on the measured collectives, searched from `start`."""
    values = deepcopy(start)
    cache: ErrorCache = {}
    best = _cost(collectives, values, start, cache)
    for step in STEP_SIZES:
        improved = True
        while improved:
            improved = False
            for holder, name in _constants_in(values):
                for factor in (1 + step, 1 / (1 + step)):
                    before = holder[name]
                    holder[name] = _bounded(name, before * factor)
                    cost = _cost(collectives, values, start, cache)
                    if cost < best - 1e-5:
                        best, improved = cost, True
                        break
                    holder[name] = before
    return values


def _cost(
    collectives: Sequence[MeasuredCollective], values: dict[str, Any], start: dict[str, Any], cache: ErrorCache
) -> float:
    pairs = zip(_constants_in(values), _constants_in(start), strict=True)
    moved = sum((log(now[name] / before[name]) / _prior_spread(name)) ** 2 for (now, name), (before, _) in pairs)
    systems = len({measured.system.name for measured in collectives})
    return loss(collectives, parse_constants(values), cache) + PRIOR_WEIGHT * moved / systems


def loss(collectives: Sequence[MeasuredCollective], constants: Constants, cache: ErrorCache | None = None) -> float:
    """Return the mean absolute log error over systems.

    `cache` reuses errors between calls: a constant of one network does not affect collectives on the others.
    """
    cache = {} if cache is None else cache
    by_system: dict[str, list[float]] = defaultdict(list)
    for number, measured in enumerate(collectives):
        key = (number, *_constants_behind(measured, constants))
        if key not in cache:
            cache[key] = [min(MAX_ERROR, abs(log(1 + error))) for error in collective_errors(measured, constants)]
        by_system[measured.system.name] += cache[key]
    weights = {system: len(errors) / (len(errors) + HALF_WEIGHT_ROWS) for system, errors in by_system.items()}
    means = ((weights[system], sum(errors) / len(errors)) for system, errors in by_system.items())
    return sum(weight * mean for weight, mean in means) / sum(weights.values())


def _constants_behind(measured: MeasuredCollective, constants: Constants) -> tuple[Hashable, ...]:
    """Return every constant that the times of this collective depend on."""
    shared = (getattr(constants, name) for name in (*CONSTANTS_OF_EVERY_OP, *CONSTANTS_BY_OP.get(measured.op, ())))
    link = constants.links[classify_link(measured.group, measured.system)]
    if count_domains(measured.group, measured.system) == 1:
        return *shared, constants.waits["in_ring"], constants.waits["in_switch"], link
    network = constants.networks[classify_network(measured.system, constants)]
    return *shared, constants.waits["out_ring"], constants.waits["out_tree"], link, network


def collective_errors(measured: MeasuredCollective, constants: Constants) -> list[float]:
    """Return the relative error of each point: above 0 the model is slower than the measurement."""
    fabric = build_fabric(measured.group, measured.system, constants)
    candidates = list_candidates(measured.op, fabric, constants)
    errors = []
    for size, time_us in zip(measured.sizes, measured.times_us, strict=True):
        predicted_us = measured.launch.time_us(min(candidate.time_us(size) for candidate in candidates))
        errors.append(predicted_us / time_us - 1)
    return errors


def _constants_in(values: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each numeric constant as the dictionary that holds it and its name; zeros are not fitted."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _constants_in(value)
        elif value and not isinstance(value, list):
            yield values, name


def _prior_spread(name: str) -> float:
    return PRIOR_SPREAD.get(name.rpartition("_")[2], SHARE_PRIOR_SPREAD)


def _bounded(name: str, value: float) -> float:
    return min(value, MAX_SHARE) if name.rpartition("_")[2] in SHARE_SUFFIXES else value
