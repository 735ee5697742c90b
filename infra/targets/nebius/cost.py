"""The cost of a cluster on Nebius, by the dated prices in prices.yaml or by those that Nebius quotes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from cluster.spec import ClusterSpec
from infra.targets.cost import Cost
from infra.targets.nebius.plan import disk_size_gb, plan_nebius
from infra.targets.nebius.spec import NebiusGroup, NebiusMachine, require_section
from infra.targets.rented.cost import Item, add_up
from infra.targets.rented.section import machine_of

PRICES = Path(__file__).with_name("prices.yaml")
PAGE = "https://docs.nebius.com/compute/resources/pricing"
OUTDATED = "the price has changed since the table was made"


def price_machine(name: str, *, preemptible: bool = False) -> float | None:
    """Return the price of an instance hour by `PLATFORM/PRESET`; None if it is not in the table."""
    prices = _read_prices()["machines"].get(name)
    return prices[preemptible] if prices else None


def cost_nebius(spec: ClusterSpec) -> Cost:
    """Return the cost of a valid spec by the dated prices."""
    on: date = _read_prices()["date"]
    return add_up(list_items(spec), on, PAGE)


def list_items(spec: ClusterSpec) -> tuple[Item, ...]:
    """Return everything that a cluster pays for, with the prices of the table."""
    return (*_list_machines(spec), *_list_storage(spec))


def _list_machines(spec: ClusterSpec) -> Iterator[Item]:
    section, outdated = require_section(spec), _read_prices()["changed_since"]
    nodes = plan_nebius(spec).nodes
    for (role, group), count in Counter((node.role, node.group) for node in nodes).items():
        machine = machine_of(section, role, group)
        item = _describe_machine(machine, f"nebius.groups.{group}" if group else f"nebius.{role}", count)
        if item.usd_per_hour is None:
            yield item
        else:
            yield replace(item, note=OUTDATED if machine.platform in outdated else "")


def _describe_machine(machine: NebiusMachine, part: str, count: int) -> Item:
    preemptible = isinstance(machine, NebiusGroup) and machine.preemptible
    instance: dict[str, Any] = {"resources": {"platform": machine.platform, "preset": machine.preset}}
    if preemptible:
        instance["preemptible"] = {"onPreemption": "STOP"}
    return Item(
        part,
        f"{machine.name}{', preemptible' if preemptible else ''}",
        count,
        price_machine(machine.name, preemptible=preemptible),
        resource={"computeInstanceSpec": {"spec": instance}},
    )


def _list_storage(spec: ClusterSpec) -> Iterator[Item]:
    section, nodes = require_section(spec), plan_nebius(spec).nodes
    for size, count in sorted(Counter(disk_size_gb(spec, node) for node in nodes).items()):
        disk = {"type": section.disk_type, "sizeGibibytes": str(size)}
        what = f"boot disk {section.disk_type}, {size} GiB"
        yield Item("nebius.disk_type", what, count, resource={"computeDiskSpec": {"spec": disk}})
    for name, storage in spec.storage.items():
        if storage.kind == "volume":
            filesystem = {"type": section.filesystem_type, "sizeGibibytes": str(storage.size_gb)}
            what = f"filesystem {section.filesystem_type}, {storage.size_gb} GiB"
            yield Item(f"storage.{name}", what, 1, resource={"computeFilesystemSpec": {"spec": filesystem}})
    if section.public_addresses:
        yield Item("nebius.public_addresses", "public IPv4 address", len(nodes))


@cache
def _read_prices() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(PRICES.read_text())
    return table
