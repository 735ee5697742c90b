"""Which network interfaces one machine gets: card, device index and kind of each, from the catalog's cards alone.

The rule is that of the EC2 user guide (docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html): an
EFA-only interface can never be the first one, carries no address, and there is at most one EFA on a card.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cluster.catalog.instances import Card, InstanceType
from cluster.spec import Fabric

Kind = Literal["interface", "efa", "efa-only"]


@dataclass(frozen=True)
class Interface:
    card: int
    device: int
    kind: Kind

    @property
    def has_address(self) -> bool:
        return self.kind != "efa-only"


class NoEfa(ValueError):
    """EFA was asked of a type that has none."""


def interfaces(instance_type: InstanceType, fabric: Fabric, *, ip_bandwidth: bool = False) -> tuple[Interface, ...]:
    """In the order of the launch template: the first one is the primary interface."""
    if fabric != "efa":
        return (Interface(0, 0, "interface"),)
    if not instance_type.efa_interfaces:
        raise NoEfa(f"{instance_type.name} has no EFA")
    if len(instance_type.network_cards) == 1:
        # Both in one: a machine with a single card then has a single interface, as every tool expects of it.
        return (Interface(0, 0, "efa"),)
    further = (i for card in instance_type.network_cards for i in _on(card, instance_type, ip_bandwidth=ip_bandwidth))
    return (Interface(0, 0, "interface"), *further)


def addresses(instance_type: InstanceType, fabric: Fabric, *, ip_bandwidth: bool = False) -> int:
    """IP addresses that one such machine takes out of its subnet."""
    return sum(i.has_address for i in interfaces(instance_type, fabric, ip_bandwidth=ip_bandwidth))


def _on(card: Card, instance_type: InstanceType, *, ip_bandwidth: bool) -> Iterator[Interface]:
    """What the card carries beside the primary interface."""
    first = card.index == 0
    if card.efa:
        yield Interface(card.index, 1 if first else 0, "efa-only")
    if ip_bandwidth and not first and card.interfaces > 1 and card.index % instance_type.ip_every == 0:
        yield Interface(card.index, 1, "interface")
