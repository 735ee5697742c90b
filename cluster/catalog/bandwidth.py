"""The bus bandwidth that an all-reduce between machines of a type should reach: published, or a lower bound."""

from __future__ import annotations

from cluster.catalog.instances import InstanceType

GIB = 2**30
"""Largest message size that the fabric job measures, in bytes; most published figures are for larger messages."""
# Share of the network cards' bandwidth. No published figure at 1 GiB or more is below 0.8, while a missing card, an
# unused plugin or TCP instead of EFA leave at most a third (4 to 8 of 50 GB/s on p4d).
MIN_SHARE = 0.5
# GPUs without NVLink send everything through PCIe (4.0 x16: 31.5 GB/s) and the host's memory, more than once.
HOST_GB_PER_S = 3.0


def expected_busbw(machine: InstanceType) -> dict[int, float]:
    """Return GB/s of bus bandwidth by message size in bytes.

    If several figures were published for a size, the lowest is used: the bandwidth falls with the number of nodes, and
    a job may have any number.
    """
    sizes = sorted({row.size for row in machine.busbw})
    published = {size: min(row.gb_per_s for row in machine.busbw if row.size == size) for size in sizes}
    minimum = minimum_busbw(machine)
    return published if GIB in published or minimum is None else {GIB: minimum, **published}


def minimum_busbw(machine: InstanceType) -> float | None:
    """Return a lower bound at 1 GiB in GB/s; None for machines without GPUs or without EFA."""
    if not machine.efa_interfaces or not machine.gpus.count:
        return None
    network = MIN_SHARE * sum(card.gbps for card in machine.network_cards if card.efa) / 8
    return min(network, HOST_GB_PER_S) if machine.gpus.count > 1 and not machine.nvlink else network
