"""Addresses of nodes: stable while a node exists, unique, and inside the range of the network."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.targets.local.addresses import NoAddressLeft, assign, first_free, holder, routes

CIDR = "10.88.3.0/24"

node_names = st.lists(
    st.sampled_from(["controller", "login", *(f"gpu-{n}" for n in range(1, 60))]), unique=True, max_size=50
)


def test_well_known_and_numbered_addresses() -> None:
    assert assign({}, ["controller", "login", "gpu-1", "gpu-2"], CIDR) == {
        "controller": "10.88.3.10",
        "login": "10.88.3.11",
        "gpu-1": "10.88.3.20",
        "gpu-2": "10.88.3.21",
    }


def test_taken_well_known_address_is_replaced() -> None:
    assert assign({"gpu-1": "10.88.3.11"}, ["gpu-1", "login"], CIDR)["login"] == "10.88.3.20"


def test_address_of_a_removed_node_is_free_one_change_later() -> None:
    grown = assign({}, ["controller", "gpu-1", "gpu-2"], CIDR)
    renamed = assign(grown, ["controller", "big-1"], CIDR)
    assert renamed == {"controller": "10.88.3.10", "big-1": "10.88.3.22"}
    assert assign(renamed, ["controller", "big-1", "big-2"], CIDR)["big-2"] == "10.88.3.20"


def test_small_range_is_used_to_its_last_address() -> None:
    names = ["controller", "login", *(f"gpu-{n}" for n in range(1, 4))]
    assigned = assign({}, names, "10.88.3.0/29")
    assert sorted(assigned.values()) == [f"10.88.3.{n}" for n in range(2, 7)]
    with pytest.raises(NoAddressLeft, match=r"network\.cidr: 10\.88\.3\.0/29 has no address left for gpu-4 \(6 nodes"):
        assign({}, [*names, "gpu-4"], "10.88.3.0/29")


def test_address_outside_the_range_is_replaced() -> None:
    assert assign({"gpu-1": "10.99.0.20"}, ["gpu-1"], CIDR) == {"gpu-1": "10.88.3.20"}


@given(first=node_names, second=node_names)
def test_addresses_are_stable_unique_and_inside_the_range(first: list[str], second: list[str]) -> None:
    old = assign({}, first, CIDR)
    new = assign(old, second, CIDR)
    assert list(new) == second
    assert all(new[name] == old[name] for name in second if name in old)
    assert len(set(new.values())) == len(new)
    assert not {new[name] for name in second if name not in old} & set(old.values())
    host_parts = {int(IPv4Address(a)) & 255 for a in new.values()}
    assert host_parts <= set(range(2, 255))


def test_first_free_skips_overlapping_ranges() -> None:
    taken = [IPv4Network("10.88.0.0/24"), IPv4Network("10.88.1.128/25"), IPv4Network("172.17.0.0/16")]
    assert first_free(taken) == "10.88.2.0/24"
    assert first_free([]) == "10.88.0.0/24"
    assert first_free([IPv4Network("10.0.0.0/8")]) is None


def test_holder_names_the_overlapping_range() -> None:
    taken = {"a": IPv4Network("10.88.0.0/24"), "b": IPv4Network("192.168.0.0/16")}
    assert holder("192.168.7.0/24", taken) == "b"
    assert holder("10.99.0.0/24", taken) is None


def test_routes_leave_out_the_default_route() -> None:
    table = (
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "eth0\t0000A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    )
    assert routes(table) == {"the route to 192.168.0.0/24 on eth0": IPv4Network("192.168.0.0/24")}
