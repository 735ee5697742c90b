"""The network of virtual machines: several tests on one machine use ranges of their own."""

from __future__ import annotations

from tests.virtual_machines.network import RANGES, Network, choose_range, name_link


def test_a_free_range_is_chosen() -> None:
    first, second = RANGES[:2]
    assert choose_range({"lo", "eth0"}) == first
    assert choose_range({"lo", name_link(first)}) == second


def test_names_of_devices_are_short_enough_and_differ() -> None:
    names = [name_link(addresses) for addresses in RANGES]
    assert len(set(names)) == len(names)
    # IFNAMSIZ of Linux, less the byte at the end.
    assert max(map(len, names)) <= 15


def test_machines_have_addresses_by_their_numbers() -> None:
    assert str(Network(1, RANGES[7]).address(3)) == "10.177.7.3/24"
