"""Money of a whole run: machines by how they are bought, storage, control plane, all by dated prices."""

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
HOUR, DAY = 3600.0, 86400.0
WEEK_DAYS = 7


@dataclass(frozen=True)
class Tariff:
    """What a cluster costs by the hour."""

    node: float
    """Of each node, with its disk."""
    fixed: float
    """Of everything else: controller, login, network, filesystems."""
    purchase: Purchase
    priced_on: date
    notes: tuple[str, ...] = ()

    def usd(self, nodes: int, seconds: float) -> float:
        """A block is paid to its end, whether it is used or not."""
        bought = block_s(seconds) if self.purchase == "block" else seconds
        return (nodes * self.node * bought + self.fixed * seconds) / HOUR


def tariff(spec: ClusterSpec, group: str, instance: str, purchase: Purchase) -> Tariff | None:
    """Of this stack with another type in one group, bought this way, and no other group; None without a price."""
    capacity = Capacity(kind=purchase)
    only = spec.groups[group].model_copy(update={"instance_type": instance, "capacity": capacity, **_ONE})
    priced = target_of(spec).cost(spec.model_copy(update={"groups": {group: only}}))
    nodes = [line for line in priced.lines if line.part == f"groups.{group}"]
    rest = [line for line in priced.lines if line.part != f"groups.{group}"]
    if purchase != "block" and any(line.open and not line.usd_per_hour for line in nodes):
        return None
    block = block_usd(instance) if purchase == "block" else 0.0
    if block is None:
        return None
    # What is paid now; the most that spot can rise to is for budgets.
    each = sum(line.least for line in nodes) + block
    on = _blocks()["date"] if purchase == "block" else priced.priced_on or instances_priced_on()
    return Tariff(each, sum(line.usd_per_hour for line in rest), purchase, on, _notes([*nodes, *rest]))


def stored_usd(spec: ClusterSpec, gb: float, seconds: float) -> float:
    """What lies on a filesystem that is paid by what lies there."""
    by_use = any(one.kind == "efs" and one.mount == "/shared" for one in spec.storage.values())
    return gb * service_price("efs").usd * seconds / HOUR / HOURS_PER_MONTH if by_use else 0.0


def block_usd(instance: str) -> float | None:
    usd: float | None = _blocks()["usd_per_hour"].get(instance)
    return usd


def block_s(seconds: float) -> float:
    """The shortest time blocks are sold for that is not shorter; after the longest the next one begins."""
    days = max(1, math.ceil(seconds / DAY))
    if days > _blocks()["days"]:
        days = math.ceil(days / WEEK_DAYS) * WEEK_DAYS
    longest: int = _blocks()["weeks"] * WEEK_DAYS
    if days > longest:
        return longest * DAY + block_s(seconds - longest * DAY)
    return days * DAY


_ONE: dict[str, Any] = {"count": 1, "min": None, "max": None}


def _notes(lines: list[Line]) -> tuple[str, ...]:
    return tuple(f"{line.part}: {line.note}" for line in lines if line.note)


@cache
def _blocks() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(DATA.read_text())
    return read
