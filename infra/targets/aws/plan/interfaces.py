"""The network interfaces of a machine: card, device index and kind of each, derived from the catalog's network cards.

The EC2 user guide defines the rule (docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html): an EFA-only
interface cannot be the primary one and has no address, and a card has at most one EFA.
"""

from __future__ import annotations

from collections.abc import Iterator

from cluster.catalog.instances import Card, InstanceType
from cluster.spec import Fabric
from infra.targets.aws.launcher.fleet import Interface


class NoEfa(ValueError):
    """A spec asks for EFA on an instance type that does not support it."""


def interfaces(instance_type: InstanceType, fabric: Fabric, *, ip_bandwidth: bool = False) -> tuple[Interface, ...]:
    """Return the interfaces of a machine; the first is the primary interface."""
    if fabric != "efa":
        return (Interface(0, 0, "interface"),)
    if not instance_type.efa_interfaces:
        raise NoEfa(f"{instance_type.name} has no EFA")
    if len(instance_type.network_cards) == 1:
        # EFA and IP in one: a machine with a single card then has a single interface, as most tools expect.
        return (Interface(0, 0, "efa"),)
    further = (
        interface
        for card in instance_type.network_cards
        for interface in _further_interfaces(card, instance_type, ip_bandwidth=ip_bandwidth)
    )
    return (Interface(0, 0, "interface"), *further)


def addresses(instance_type: InstanceType, fabric: Fabric, *, ip_bandwidth: bool = False) -> int:
    """Return how many IP addresses of its subnet a machine uses."""
    return sum(i.has_address for i in interfaces(instance_type, fabric, ip_bandwidth=ip_bandwidth))


def _further_interfaces(card: Card, instance_type: InstanceType, *, ip_bandwidth: bool) -> Iterator[Interface]:
    """Yield the interfaces of a card besides the primary interface."""
    first = card.index == 0
    if card.efa:
        yield Interface(card.index, 1 if first else 0, "efa-only")
    if ip_bandwidth and not first and card.interfaces > 1 and card.index % instance_type.ip_every == 0:
        yield Interface(card.index, 1, "interface")
