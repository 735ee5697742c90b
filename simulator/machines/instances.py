"""Instance types of the catalog as machines of the simulator."""

from __future__ import annotations

from functools import cache

from cluster.catalog.instances import InstanceType, UnknownInstanceType, UnverifiedInstanceType, all_types, instance
from cluster.catalog.prices import instance_price
from simulator.hardware.gpus import link_gb_s, load_gpu
from simulator.hardware.system import System
from trainer.config.errors import ConfigError, ConfigProblem

BITS_PER_BYTE = 8.0
EFA_GBPS_PER_NODE = {"p6-b200.48xlarge": 3200.0, "g6e.24xlarge": 200.0, "g6e.48xlarge": 400.0}
"""Bandwidth of all EFA cards together, where the sum that DescribeInstanceTypes gives differs from what AWS sells.

aws.amazon.com/ec2/instance-types/p6, .../g6e; measured on p6-b200: data/collectives.csv.
"""


@cache
def system(name: str, nodes: int, fabric: str = "efa", region: str = "us-east-1") -> System:
    """Return this number of nodes of an instance type; raise ConfigError if the catalog or the data sheets lack it."""
    try:
        kind = instance(name)
    except (UnknownInstanceType, UnverifiedInstanceType) as error:
        message = f"{error}; allowed: {', '.join(with_gpus())}"
        raise ConfigError([ConfigProblem("instance", message, _fix(name))]) from None
    if not kind.gpus.count:
        message = f"'{name}' has no GPU that the simulator knows; allowed: {', '.join(with_gpus())}"
        raise ConfigError([ConfigProblem("instance", message, "choose one of them")])
    try:
        sheet = load_gpu(kind.gpus.type, kind.gpus.memory_mb / 1024)
    except KeyError:
        message = f"there is no data sheet of {kind.gpus.name} ('{name}'); allowed: {', '.join(with_gpus())}"
        raise ConfigError([ConfigProblem("instance", message, "choose one of them")]) from None
    prices = {
        purchase: price.usd
        for purchase, spot in (("on-demand", False), ("spot", True))
        if (price := instance_price(name, region, spot=spot))
    }
    efa = fabric == "efa" and kind.efa_interfaces > 0
    return System(
        name=name,
        gpu=sheet,
        gpus_per_node=kind.gpus.count,
        nodes=nodes,
        intra_gb_s=link_gb_s(sheet.name),
        inter_gb_s=_gbps(kind, efa) / BITS_PER_BYTE,
        nvlink_domain=kind.gpus.count if kind.nvlink else 1,
        network="efa" if efa else "ethernet",
        price_per_hour=prices,
        cards=sum(card.efa for card in kind.network_cards) if efa else 1,
    )


def _gbps(kind: InstanceType, efa: bool) -> float:
    """Return the node's network bandwidth: TCP uses the card with the node's address, EFA uses all EFA cards."""
    if not efa:
        return kind.network_cards[0].gbps
    return EFA_GBPS_PER_NODE.get(kind.name) or sum(card.gbps for card in kind.network_cards if card.efa)


def with_gpus() -> list[str]:
    """Return the instance types whose GPUs have a data sheet, sorted by name."""
    return sorted(name for name, kind in all_types().items() if kind.gpus.count and _has_sheet(kind.gpus.type))


def _fix(name: str) -> str:
    """Return the advice for an unknown type; the user may have named a GPU instead."""
    types = [kind for kind in with_gpus() if all_types()[kind].gpus.type.lower() == name.lower()]
    return f"types with {name}: {', '.join(types)}" if types else "choose one of them"


def _has_sheet(name: str) -> bool:
    try:
        load_gpu(name)
    except KeyError:
        return False
    return True
