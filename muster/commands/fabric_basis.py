"""What the figures of a fabric run are held to, in words, where it is no measurement that somebody published. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.catalog.bandwidth import GIB, HOST_GB_PER_S, minimum_busbw
from cluster.catalog.instances import all_types
from cluster.inventory import NodeSet


def basis(partition: str, sets: Sequence[NodeSet]) -> str:
    """Empty where the catalog has a published figure."""
    nodes = next((one for one in sets if one.group == partition), None)
    found = all_types().get(nodes.instance_type) if nodes else None
    if nodes is None or found is None or nodes.fabric != "efa":
        return f"{partition}: no figure is known for this network, pairs are judged by each other only"
    if any(row.size == GIB for row in found.busbw):
        return ""
    nobody = f"{partition}: nobody has published a figure for {found.name}"
    least = minimum_busbw(found)
    if least is None:
        return f"{nobody}, which has no GPU: pairs are judged by each other only"
    if least == HOST_GB_PER_S:
        return f"{nobody}: {least:g} GB/s is a tenth of the PCIe that its {found.gpus.count} GPUs share"
    cards = sum(card.efa for card in found.network_cards)
    return f"{nobody}: {least:g} GB/s is half of what its {cards} EFA card{' carries' if cards == 1 else 's carry'}"
