"""Fitting the constants of collectives to measured ones: one constant at a time, as long as it helps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import log
from typing import Any

from simulator.collectives.candidates import candidates
from simulator.collectives.constants import Constants, constants
from simulator.collectives.fabric import fabric_of, link_kind, network_kind, nodes_of
from simulator.collectives.group import Group, Op
from simulator.collectives.launch import APART, Launch
from simulator.hardware.system import System

WORST = 0.4
"""An error that is larger counts as this: a broken machine says nothing about the others."""
CURVE = 4
"""Rows with which a system counts half of what it would with a long curve."""
STEPS = (0.12, 0.05, 0.02)
SHARES = ("share", "ring", "nvls", "power")
"""The last words of names whose values stay below MOST_SHARE."""
MOST_SHARE = 0.98
"""Every packet has a header."""
DOUBT = {"us": 0.7, "most": 0.5}
"""How far a constant may be from what was believed, by the last word of its name, in logarithms; others: a share."""
SHARE_DOUBT = 0.1
BELIEF = 0.06
"""What a constant that is off by its doubt costs, in errors of one system: few rows do not move it far."""
BELIEVED: dict[str, Any] = {
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
"""Before any collective was measured: data sheets, round figures of NCCL's authors and of the plugins."""


ALWAYS = ("launch_us", "ll128_share")
OF_OP: dict[Op, tuple[str, ...]] = {
    "all_reduce": ("nvls_tree_share", "many_tree_share", "many_nvls_share"),
    "all_gather": ("channel_gb_s",),
    "reduce_scatter": ("channel_gb_s",),
    "broadcast": ("channel_gb_s",),
    "reduce": ("channel_gb_s",),
    "all_to_all": ("peer_us", "all_to_all_share"),
}
"""Constants of SHARED that not every collective comes from."""
Known = dict[tuple[Hashable, ...], list[float]]
"""Errors of a collective by the constants that they come from."""


@dataclass(frozen=True)
class Measured:
    op: Op
    group: Group
    system: System
    sizes: tuple[float, ...]
    times_us: tuple[float, ...]
    launch: Launch = APART
    source: str = ""


def fit(measured: Sequence[Measured], start: dict[str, Any] = BELIEVED) -> dict[str, Any]:
    """The constants, from `start`, that are nearest to what was measured; many rows count little more than a curve."""
    found = deepcopy(start)
    known: Known = {}
    best = _cost(measured, found, start, known)
    for step in STEPS:
        better = True
        while better:
            better = False
            for holder, name in _leaves(found):
                for factor in (1 + step, 1 / (1 + step)):
                    before = holder[name]
                    holder[name] = _bounded(name, before * factor)
                    tried = _cost(measured, found, start, known)
                    if tried < best - 1e-5:
                        best, better = tried, True
                        break
                    holder[name] = before
    return found


def _cost(measured: Sequence[Measured], found: dict[str, Any], start: dict[str, Any], known: Known) -> float:
    pairs = zip(_leaves(found), _leaves(start), strict=True)
    moved = sum((log(now[name] / before[name]) / _doubt(name)) ** 2 for (now, name), (before, _) in pairs)
    return loss(measured, constants(found), known) + BELIEF * moved / len({one.system.name for one in measured})


def loss(measured: Sequence[Measured], fitted: Constants, known: Known | None = None) -> float:
    """`known` keeps what is computed: a constant of one network leaves the others' collectives as they were."""
    kept = {} if known is None else known
    by_system: dict[str, list[float]] = defaultdict(list)
    for number, one in enumerate(measured):
        key = (number, *_behind(one, fitted))
        if key not in kept:
            kept[key] = [min(WORST, abs(log(1 + error))) for error in errors(one, fitted)]
        by_system[one.system.name] += kept[key]
    weights = {system: len(wrong) / (len(wrong) + CURVE) for system, wrong in by_system.items()}
    means = ((weights[system], sum(wrong) / len(wrong)) for system, wrong in by_system.items())
    return sum(weight * mean for weight, mean in means) / sum(weights.values())


def _behind(one: Measured, fitted: Constants) -> tuple[Hashable, ...]:
    """Every constant that the times of this collective come from."""
    own = (getattr(fitted, name) for name in (*ALWAYS, *OF_OP.get(one.op, ())))
    link = fitted.links[link_kind(one.group, one.system)]
    if nodes_of(one.group, one.system) == 1:
        return *own, fitted.waits["in_ring"], fitted.waits["in_switch"], link
    network = fitted.networks[network_kind(one.system, fitted)]
    return *own, fitted.waits["out_ring"], fitted.waits["out_tree"], link, network


def errors(measured: Measured, fitted: Constants) -> list[float]:
    """Relative, above 0 where the model is slower."""
    ways = candidates(measured.op, fabric_of(measured.group, measured.system, fitted), fitted)
    known = zip(measured.sizes, measured.times_us, strict=True)
    modelled = [(min(way.time_us(size) for way in ways), time_us) for size, time_us in known]
    return [measured.launch.time_us(model_us) / time_us - 1 for model_us, time_us in modelled]


def _leaves(holder: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    for name, value in holder.items():
        if isinstance(value, dict):
            yield from _leaves(value)
        elif value and not isinstance(value, list):
            yield holder, name


def _doubt(name: str) -> float:
    return DOUBT.get(name.rpartition("_")[2], SHARE_DOUBT)


def _bounded(name: str, value: float) -> float:
    return min(value, MOST_SHARE) if name.rpartition("_")[2] in SHARES else value
