"""The cost of a cluster on Nebius, by the dated prices in prices.yaml."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from cluster.spec import ClusterSpec
from infra.plan import PlannedNode
from infra.targets.cost import Cost, Line
from infra.targets.nebius.plan import disk_size_gb, plan_nebius
from infra.targets.nebius.spec import NebiusGroup, machine_of, require_section

PRICES = Path(__file__).with_name("prices.yaml")
NOT_INCLUDED = ("traffic to the internet", "taxes")
_UNKNOWN = "not in the price table"
_OUTDATED = "has changed since"


def price_machine(name: str, *, preemptible: bool = False) -> float | None:
    """Return the price of an instance hour by `PLATFORM/PRESET`; None if it is not in the table."""
    prices = _read_prices()["machines"].get(name)
    return prices[preemptible] if prices else None


def cost_nebius(spec: ClusterSpec) -> Cost:
    """Return the cost of a valid spec."""
    table = _read_prices()
    on: date = table["date"]
    return Cost((*_list_machines(spec), *_list_storage(spec)), on, NOT_INCLUDED, str(table["page"]))


def _list_machines(spec: ClusterSpec) -> Iterator[Line]:
    section, outdated = require_section(spec), _read_prices()["changed_since"]
    nodes = plan_nebius(spec).nodes
    for (role, group), count in Counter((node.role, node.group) for node in nodes).items():
        machine = machine_of(section, role, group)
        preemptible = isinstance(machine, NebiusGroup) and machine.preemptible
        price = price_machine(machine.name, preemptible=preemptible)
        yield Line(
            f"nebius.groups.{group}" if group else f"nebius.{role}",
            f"{machine.name}{', preemptible' if preemptible else ''}",
            count,
            count * (price or 0.0),
            note=_UNKNOWN if price is None else _OUTDATED if machine.platform in outdated else "",
            open=price is None or machine.platform in outdated,
        )


def _list_storage(spec: ClusterSpec) -> Iterator[Line]:
    section = require_section(spec)
    nodes: tuple[PlannedNode, ...] = plan_nebius(spec).nodes
    for size, count in sorted(Counter(disk_size_gb(spec, node) for node in nodes).items()):
        yield Line("nebius.disk_type", f"boot disk {section.disk_type}, {size} GiB", count, 0.0, _UNKNOWN, open=True)
    for name, storage in spec.storage.items():
        if storage.kind == "volume":
            what = f"filesystem {section.filesystem_type}, {storage.size_gb} GiB"
            yield Line(f"storage.{name}", what, 1, 0.0, _UNKNOWN, open=True)
    if section.public_addresses:
        yield Line("nebius.public_addresses", "public IPv4 address", len(nodes), 0.0, _UNKNOWN, open=True)


@cache
def _read_prices() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(PRICES.read_text())
    return table
