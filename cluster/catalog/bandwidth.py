"""How fast an all-reduce between machines of a type should be: as somebody published it, else the least of it."""

from __future__ import annotations

from cluster.catalog.instances import InstanceType

GIB = 2**30
"""The largest message that the fabric job measures; much of what is published is of larger ones."""
# Of what the cards carry. No published figure of 1 GiB or more is below 0.8; a card that is missing, a plugin that is
# not used or TCP instead of EFA leave a third at most (4 to 8 of 50 GB/s on p4d).
SHARE = 0.5
# GPUs without NVLink pass everything through PCIe (4.0 x16: 31.5 GB/s) and the host's memory, more than once.
HOST_GB_PER_S = 3.0


def expected(found: InstanceType) -> dict[int, float]:
    """GB/s of bus bandwidth by bytes. Of what was published for a size the least: more nodes give less, and a job may
    have any number."""
    sizes = sorted({row.size for row in found.busbw})
    published = {size: min(row.gb_per_s for row in found.busbw if row.size == size) for size in sizes}
    least = floor(found)
    return published if GIB in published or least is None else {GIB: least, **published}


def floor(found: InstanceType) -> float | None:
    """GB/s at 1 GiB; None where no GPU speaks over EFA."""
    if not found.efa_interfaces or not found.gpus.count:
        return None
    network = SHARE * sum(card.gbps for card in found.network_cards if card.efa) / 8
    return min(network, HOST_GB_PER_S) if found.gpus.count > 1 and not found.nvlink else network
