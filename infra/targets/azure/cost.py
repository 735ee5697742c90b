"""The cost of a cluster on Azure, by the dated prices in sizes.yaml or by those that Azure publishes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from cluster.spec import ClusterSpec
from infra.targets.azure.plan import disk_size_gb, plan_azure
from infra.targets.azure.sizes import read_price_date, read_sizes
from infra.targets.azure.spec import SECTION, Azure, require_section
from infra.targets.cost import Cost
from infra.targets.rented.cost import Item, add_up
from infra.targets.rented.section import machine_of

PAGE = "https://azure.microsoft.com/pricing/details/virtual-machines/linux/"


def cost_azure(spec: ClusterSpec) -> Cost:
    """Return the cost of a valid spec by the dated prices."""
    return add_up(list_items(spec), read_price_date(), PAGE)


def list_items(spec: ClusterSpec) -> tuple[Item, ...]:
    """Return everything that a cluster pays for, with the prices of the table."""
    return (*_list_machines(spec), *_list_others(spec))


def _list_machines(spec: ClusterSpec) -> Iterator[Item]:
    section, nodes = require_section(spec), plan_azure(spec).nodes
    for (role, group), count in Counter((node.role, node.group) for node in nodes).items():
        size = machine_of(section, role, group).size
        item = Item(f"{SECTION}.groups.{group}" if group else f"{SECTION}.{role}", size, count)
        yield _price(item, section)


def _price(item: Item, section: Azure) -> Item:
    price = read_sizes()[item.what].prices.get(section.region)
    resource = {"armSkuName": item.what, "armRegionName": section.region}
    note = item.note if price is None else ""
    return Item(item.part, item.what, item.count, price, note, resource)


def _list_others(spec: ClusterSpec) -> Iterator[Item]:
    section, nodes = require_section(spec), plan_azure(spec).nodes
    sizes = Counter(disk_size_gb(spec, node.role, node.group) for node in nodes)
    for size, count in sorted(sizes.items()):
        yield Item(f"{SECTION}.disk_sku", f"boot disk {section.disk_sku}, {size} GiB", count)
    for name, storage in spec.storage.items():
        if storage.kind == "volume":
            yield Item(f"storage.{name}", f"filesystem {section.filesystem_sku}, {storage.size_gb} GiB", 1)
    yield Item(f"{SECTION}.region", "NAT gateway", 1)
    addresses = 1 + (len(nodes) if section.public_addresses else 0)
    yield Item(f"{SECTION}.public_addresses", "public IPv4 address", addresses)
