"""Cost of a whole run by dated prices: machines by purchase option, storage and control plane."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from cluster.catalog.prices import HOURS_PER_MONTH, instances_priced_on, service_price
from cluster.spec import Capacity, ClusterSpec, Purchase
from infra.targets.cost import Line
from infra.targets.registry import target_of

DATA = Path(__file__).parents[1] / "data" / "blocks.yaml"
HOUR_S, DAY_S = 3600.0, 86400.0
WEEK_DAYS = 7


@dataclass(frozen=True)
class Tariff:
    """Hourly prices of a cluster in US dollars."""

    node: float
    """Price of each node, including its disk."""
    fixed: float
    """Price of everything else: controller, login, network, filesystems."""
    purchase: Purchase
    priced_on: date
    notes: tuple[str, ...] = ()

    def usd(self, nodes: int, seconds: float) -> float:
        """Return the cost of a run; a capacity block is paid to its end, used or not."""
        bought = block_s(seconds) if self.purchase == "block" else seconds
        return (nodes * self.node * bought + self.fixed * seconds) / HOUR_S


def tariff(spec: ClusterSpec, group: str, instance: str, purchase: Purchase) -> Tariff | None:
    """Return the prices of a stack with only this group, of another type or purchase; None if there is no price."""
    capacity = Capacity(kind=purchase)
    only = spec.groups[group].model_copy(update={"instance_type": instance, "capacity": capacity, **_SINGLE_NODE})
    priced = target_of(spec).cost(spec.model_copy(update={"groups": {group: only}}))
    nodes = [line for line in priced.lines if line.part == f"groups.{group}"]
    others = [line for line in priced.lines if line.part != f"groups.{group}"]
    if purchase != "block" and any(line.open and not line.usd_per_hour for line in nodes):
        return None
    block = block_usd(instance) if purchase == "block" else 0.0
    if block is None:
        return None
    # The current price; the highest spot price matters for budgets only.
    node = sum(line.least for line in nodes) + block
    on = _blocks()["date"] if purchase == "block" else priced.priced_on or instances_priced_on()
    return Tariff(node, sum(line.usd_per_hour for line in others), purchase, on, _notes([*nodes, *others]))


def stored_usd(spec: ClusterSpec, gb: float, seconds: float) -> float:
    """Return the cost of stored data on a filesystem that is billed by use."""
    by_use = any(entry.kind == "efs" and entry.mount == "/shared" for entry in spec.storage.values())
    return gb * service_price("efs").usd * seconds / HOUR_S / HOURS_PER_MONTH if by_use else 0.0


def block_usd(instance: str) -> float | None:
    """Return the hourly price of a node in a capacity block; None if there is none."""
    usd: float | None = _blocks()["usd_per_hour"].get(instance)
    return usd


def block_s(seconds: float) -> float:
    """Return the shortest duration of capacity blocks that covers the time; long runs need several in sequence."""
    days = max(1, math.ceil(seconds / DAY_S))
    if days > _blocks()["days"]:
        days = math.ceil(days / WEEK_DAYS) * WEEK_DAYS
    longest: int = _blocks()["weeks"] * WEEK_DAYS
    if days > longest:
        return longest * DAY_S + block_s(seconds - longest * DAY_S)
    return days * DAY_S


_SINGLE_NODE: dict[str, Any] = {"count": 1, "min": None, "max": None}


def _notes(lines: list[Line]) -> tuple[str, ...]:
    return tuple(f"{line.part}: {line.note}" for line in lines if line.note)


@cache
def _blocks() -> dict[str, Any]:
    blocks: dict[str, Any] = yaml.safe_load(DATA.read_text())
    return blocks
