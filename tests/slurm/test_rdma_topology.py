"""From the output of ibnetdiscover and lldpctl to leaf switches and the hosts under them."""

from __future__ import annotations

import json

import pytest

from slurm.rdma.ibnetdiscover import SubnetNode, merge_subnets, name_switch, normalize_guid, parse_ibnetdiscover
from slurm.rdma.leaves import Leaf, group_leaves, name_leaves
from slurm.rdma.lldp import LldpError, LldpSwitch, parse_lldp
from tests.slurm.ib_subnets import describe_switch, guid_of, render_lldp, render_subnet, sysfs_guid

NAMES = {
    "S-a1": "MF0;leaf-1:MQM9700/U1",
    "S-a2": "Quantum Mellanox Technologies",
    "S-b1": "MF0;spine-1:MQM9700/U1",
    "H-1": "rack1-1 mlx5_0",
    "H-2": 'node "two" HCA-1',
    "H-3": "MT4129 ConnectX7   Mellanox Technologies",
    "H-e1": "Mellanox Technologies Aggregation Node",
    "R-f1": "gateway",
}
LINKS = [
    ("S-a1", 1, "H-1", 1),
    ("S-a1", 2, "H-2", 1),
    ("S-a2", 1, "H-3", 2),
    ("S-a1", 33, "S-b1", 1),
    ("S-a1", 34, "S-b1", 2),
    ("S-a2", 33, "S-b1", 3),
    ("S-b1", 65, "H-e1", 1),
    ("S-b1", 40, "R-f1", 1),
]
OUTPUT = render_subnet(NAMES, LINKS, ("4xNDR", "2xNDR", "4xHDR", "1xSDR"))


def test_nodes_and_links_of_a_subnet() -> None:
    subnet = parse_ibnetdiscover(OUTPUT)
    assert subnet.nodes == {
        guid_of(node): SubnetNode(guid_of(node), {"S": "switch", "H": "adapter", "R": "router"}[node[0]], name)
        for node, name in NAMES.items()
    }
    assert len(subnet.peers) == 2 * len(LINKS)
    assert subnet.find_switch(guid_of("H-1"), 1) == guid_of("S-a1")
    assert subnet.find_switch(guid_of("H-3"), 2) == guid_of("S-a2")
    # No cable, and no such adapter.
    assert (subnet.find_switch(guid_of("H-3"), 1), subnet.find_switch("0" * 16, 1)) == ("", "")
    # Neither the gateway nor the aggregation node is a switch.
    assert subnet.list_neighbors(guid_of("S-b1")) == {guid_of("S-a1"), guid_of("S-a2")}


def test_the_example_of_the_manual_page_has_other_blanks_and_no_rates() -> None:
    text = (
        "Non-Chassis Nodes\n\n"
        "switchguid=0x5442ba00003080(5442ba00003080)\n"
        'Switch  24 "S-005442ba00003080"         # "a Voltaire" base port 0 lid 6 lmc 0\n'
        '[22]    "H-0008f10403961354"[1](8f10403961355)         # "MT23108" lid 4\n'
        '[3][ext 7]    "S-0008f10400410015"[1][ext 2]         # "SW-6IB4" lid 3 4xSDR\n'
    )
    subnet = parse_ibnetdiscover(text)
    assert subnet.find_switch("0008f10403961354", 1) == "005442ba00003080"
    # The other ends have no records here: the text ends early.
    assert {guid: node.kind for guid, node in subnet.nodes.items()} == {
        "005442ba00003080": "switch",
        "0008f10403961354": "adapter",
        "0008f10400410015": "switch",
    }


def test_a_direct_cable_and_other_text_have_no_switch() -> None:
    direct = parse_ibnetdiscover(render_subnet({"H-1": "a", "H-2": "b"}, [("H-1", 1, "H-2", 1)]))
    assert direct.find_switch(guid_of("H-1"), 1) == ""
    assert not parse_ibnetdiscover("ibwarn: [12] mad_rpc_open_port: can't open UMAD port ((null):0)\n").nodes


def test_rails_in_subnets_of_their_own_are_merged() -> None:
    rails = [
        parse_ibnetdiscover(render_subnet({f"S-{s}": s, f"H-{h}": "host"}, [(f"S-{s}", 1, f"H-{h}", 1)]))
        for s, h in (("a1", "1"), ("a2", "2"))
    ]
    both = merge_subnets(*rails)
    assert [both.find_switch(guid_of(f"H-{h}"), 1) for h in "12"] == [guid_of("S-a1"), guid_of("S-a2")]


@pytest.mark.parametrize(
    ("description", "name"),
    [
        ("MF0;leaf-1:MQM9700/U1", "leaf-1"),
        ("MF0;core:CS7500/L01/U2", "core/L01"),
        ("SwitchX -  Mellanox Technologies", ""),
        ("Quantum Mellanox Technologies", ""),
        ("ISR9024 rack 4", "ISR9024 rack 4"),
        ("", ""),
    ],
)
def test_names_of_switches(description: str, name: str) -> None:
    assert name_switch(SubnetNode("1", "switch", description)) == name


def test_guids_of_sysfs_and_of_the_tool_are_equal() -> None:
    assert normalize_guid(sysfs_guid("H-0c42a10300abcdef")) == normalize_guid("0xC42A10300ABCDEF") == "0c42a10300abcdef"


def above(**hosts: str) -> dict[str, frozenset[str]]:
    return {host: frozenset(switches.split()) for host, switches in hosts.items()}


def test_hosts_under_the_same_switches_are_one_leaf() -> None:
    hosts = above(a1="s1 s2", a2="s2 s1", b1="s3 s4", b2="s3 s4", lost="")
    fat = dict.fromkeys(("s1", "s2", "s3", "s4"), ("core1", "core2"))
    leaves = group_leaves(hosts, fat)
    assert leaves == (Leaf(frozenset({"s1", "s2"}), ("a1", "a2")), Leaf(frozenset({"s3", "s4"}), ("b1", "b2")))
    names = {"s1": "Leaf01-R1.dc", "s2": "Leaf01-R2", "s3": "", "s4": ""}
    assert {name: leaf.hosts for name, leaf in name_leaves(leaves, names).items()} == {
        "leaf01-r1-dc": ("a1", "a2"),
        "leaf-s3": ("b1", "b2"),
    }


def test_a_host_that_lacks_a_rail_stays_with_the_others() -> None:
    leaves = group_leaves(above(a1="s1 s2", a2="s2", b1="s3 s4", c1="s1"), {})
    assert [leaf.hosts for leaf in leaves] == [("a1", "a2", "c1"), ("b1",)]
    # Two leaves could be meant.
    leaves = group_leaves(above(a1="s1 s2", b1="s2 s3", c1="s2"), {})
    assert [leaf.hosts for leaf in leaves] == [("a1",), ("b1",), ("c1",)]


def test_leaves_that_share_a_spine_are_a_pod_if_others_do_not() -> None:
    hosts = above(a="s1", b="s2", c="s3", d="s4")
    neighbors = {"s1": ["x1"], "s3": ["y1"], "s2": ["x1", "x2"], "s4": ["y1", "y2"]}
    assert [(leaf.hosts, leaf.pod) for leaf in group_leaves(hosts, neighbors)] == [
        (("a",), 1),
        (("b",), 1),
        (("c",), 2),
        (("d",), 2),
    ]


def test_names_do_not_depend_on_the_order_and_are_never_shared() -> None:
    leaves = group_leaves(above(a="00a1", b="00a2", c="00a3"), {})
    names = {"00a1": "core", "00a2": "core", "00a3": "a-name-with-more-than-20-letters"}
    named = name_leaves(leaves, names)
    assert {name: leaf.hosts for name, leaf in named.items()} == {
        "leaf-00a1": ("a",),
        "leaf-00a2": ("b",),
        "leaf-00a3": ("c",),
    }
    assert name_leaves(leaves[::-1], names) == named
    assert list(name_leaves(group_leaves(above(a="s1"), {}), {"s1": "All"})) == ["leaf-s1"]


def test_lldp_neighbors_by_interface() -> None:
    station = [{"type": "Bridge", "enabled": False}, {"type": "Station", "enabled": True}]
    output = render_lldp(
        [
            ("eth2", describe_switch("0C:42:A1:00:00:01", "leaf1")),
            ("eth3", describe_switch("0c:42:a1:00:00:02", "", {"type": "Router", "enabled": True})),
            ("eth4", describe_switch("0c:42:a1:00:00:03", "another-host", station)),
            # Both are seen through a switch that passes LLDP on.
            ("eth5", describe_switch("0c:42:a1:00:00:04", "leaf4")),
            ("eth5", describe_switch("0c:42:a1:00:00:05", "leaf5", ())),
        ]
    )
    assert parse_lldp(output) == {
        "eth2": LldpSwitch("0c:42:a1:00:00:01", "leaf1"),
        "eth3": LldpSwitch("0c:42:a1:00:00:02"),
    }
    # A single interface is a mapping, not a list; without neighbors there is none.
    assert parse_lldp(render_lldp([("eth2", describe_switch("ab", "leaf1"))])) == {"eth2": LldpSwitch("ab", "leaf1")}
    assert parse_lldp(render_lldp([])) == parse_lldp("") == {}


@pytest.mark.parametrize("text", ["no JSON", "[]", json.dumps({"lldp": {"interface": ["eth0"]}})])
def test_other_text_than_that_of_lldpctl_is_an_error(text: str) -> None:
    with pytest.raises(LldpError, match="unexpected output of lldpctl"):
        parse_lldp(text)
