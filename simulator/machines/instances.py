"""Instance types of the catalog as the simulator's machines."""

from __future__ import annotations

from functools import cache

from cluster.catalog.instances import InstanceType, UnknownInstanceType, UnverifiedInstanceType, all_types, instance
from cluster.catalog.prices import instance_price
from simulator.hardware.gpus import gpu, link_gb_s
from simulator.hardware.system import System
from trainer.config.errors import ConfigError, ConfigProblem

GB = 8.0
"""Gigabits in one."""
NODE_GBPS = {"p6-b200.48xlarge": 3200.0, "g6e.24xlarge": 200.0, "g6e.48xlarge": 400.0}
"""Of all EFA cards together, where DescribeInstanceTypes says something else of one card than AWS sells as the whole.

aws.amazon.com/ec2/instance-types/p6, .../g6e; measured on p6-b200: data/collectives.csv.
"""


@cache
def system(name: str, nodes: int, fabric: str = "efa", region: str = "us-east-1") -> System:
    """So many machines of a type; raises ConfigError where the catalog or the data sheets do not have it."""
    try:
        found = instance(name)
    except (UnknownInstanceType, UnverifiedInstanceType) as bad:
        message = f"{bad}; allowed: {', '.join(with_gpus())}"
        raise ConfigError([ConfigProblem("instance", message, _instead(name))]) from None
    if not found.gpus.count:
        message = f"'{name}' has no GPU that is known here; allowed: {', '.join(with_gpus())}"
        raise ConfigError([ConfigProblem("instance", message, "choose one of them")])
    try:
        sheet = gpu(found.gpus.type, found.gpus.memory_mb / 1024)
    except KeyError:
        message = f"the data sheet of {found.gpus.name} ('{name}') is not known; allowed: {', '.join(with_gpus())}"
        raise ConfigError([ConfigProblem("instance", message, "choose one of them")]) from None
    prices = {
        way: price.usd
        for way, spot in (("on-demand", False), ("spot", True))
        if (price := instance_price(name, region, spot=spot))
    }
    efa = fabric == "efa" and found.efa_interfaces > 0
    return System(
        name=name,
        gpu=sheet,
        gpus_per_node=found.gpus.count,
        nodes=nodes,
        intra_gb_s=link_gb_s(sheet.name),
        inter_gb_s=_gbps(found, efa) / GB,
        nvlink_domain=found.gpus.count if found.nvlink else 1,
        network="efa" if efa else "ethernet",
        price_per_hour=prices,
        cards=sum(card.efa for card in found.network_cards) if efa else 1,
    )


def _gbps(found: InstanceType, efa: bool) -> float:
    """TCP has the card with the node's address; EFA has all of its own."""
    if not efa:
        return found.network_cards[0].gbps
    return NODE_GBPS.get(found.name) or sum(card.gbps for card in found.network_cards if card.efa)


def with_gpus() -> list[str]:
    return sorted(name for name, found in all_types().items() if found.gpus.count and _sheet_is_known(found.gpus.type))


def _instead(word: str) -> str:
    """Somebody may have named the GPU."""
    alike = [name for name in with_gpus() if all_types()[name].gpus.type.lower() == word.lower()]
    return f"types with {word}: {', '.join(alike)}" if alike else "choose one of them"


def _sheet_is_known(name: str) -> bool:
    try:
        gpu(name)
    except KeyError:
        return False
    return True
