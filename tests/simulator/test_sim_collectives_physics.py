"""Effects that keep collectives below the rates of links and network cards, compared with published figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.collectives import Group, Op, choose_algorithm, collective_time_s
from simulator.collectives.constants import SHARED_CONSTANTS, load_fitted_constants, parse_constants
from simulator.collectives.fabric import classify_network
from simulator.fit.collectives import (
    CONSTANTS_BY_OP,
    CONSTANTS_OF_EVERY_OP,
    PRIOR_CONSTANTS,
    ErrorCache,
    MeasuredCollective,
    loss,
)
from simulator.hardware.gpus import load_gpu
from simulator.hardware.system import System
from simulator.rows.network import parse_network
from tests.simulator.collective_systems import h100

LARGE = 2**34
PAIR = Group(16, 8)


def a100(inter_gb_s: float, network: str = "infiniband", cards: int = 8) -> System:
    return System(
        name="a100",
        gpu=load_gpu("a100"),
        gpus_per_node=8,
        nodes=2,
        intra_gb_s=300,
        inter_gb_s=inter_gb_s,
        network=network,
        cards=cards,
    )


def bus_gb_s(op: Op, group: Group, system: System) -> float:
    rounds = 2 if op == "all_reduce" else 1
    return LARGE * rounds * (group.ranks - 1) / group.ranks / collective_time_s(op, LARGE, group, system) / 1e9


def test_single_round_across_nodes_is_limited_by_nccl_channels() -> None:
    """Published: 324 of 400 GB/s on ten nodes with eight H100s, 329 on two with H200s; 196 of 200 with four GPUs."""
    ops: tuple[Op, ...] = ("all_gather", "reduce_scatter")
    for op in ops:
        assert bus_gb_s(op, Group(80, 8), h100(10)) == pytest.approx(324, rel=0.05)
        assert bus_gb_s(op, Group(40, 4), h100(10)) == pytest.approx(196, rel=0.05)


def test_two_a100_nodes_use_a_ring_if_network_cards_are_fast() -> None:
    """Published: a ring with 188 GB/s on eight cards of 200 Gbit/s; a tree on slow cards."""
    quick, slow = a100(200), a100(50, "efa", 4)
    assert choose_algorithm("all_reduce", LARGE, PAIR, quick).algorithm == "ring"
    assert bus_gb_s("all_reduce", PAIR, quick) == pytest.approx(188, rel=0.05)
    assert choose_algorithm("all_reduce", LARGE, PAIR, slow).algorithm == "tree"
    # Bus bandwidth exceeds the cards' 50 GB/s: with two nodes, each node sends the array only once.
    assert bus_gb_s("all_reduce", PAIR, slow) > 70


@pytest.mark.parametrize(
    ("inter_gb_s", "cards", "kind"),
    [
        (400, 8, "infiniband"),
        (100, 2, "infiniband"),
        (200, 8, "infiniband_hdr"),
        (50, 4, "infiniband_edr"),
        (12.5, 1, "infiniband_edr"),
    ],
)
def test_network_generation_follows_from_card_rate(inter_gb_s: float, cards: int, kind: str) -> None:
    assert classify_network(a100(inter_gb_s, cards=cards), load_fitted_constants()) == kind


def test_older_network_generations_lose_more_bandwidth() -> None:
    shares = [
        load_fitted_constants().networks[kind].share for kind in ("infiniband", "infiniband_hdr", "infiniband_edr")
    ]
    assert shares == sorted(shares, reverse=True)


def test_algorithms_disabled_by_a_cloud_are_not_chosen() -> None:
    """Google's settings allow only rings on TCPX, and no reduction in the switch on TCPXO."""
    assert choose_algorithm("all_reduce", LARGE, PAIR, h100(2)).algorithm == "nvls_tree"
    for size in (2**20, 2**26, LARGE):
        assert (
            choose_algorithm("all_reduce", size, PAIR, replace(h100(2, "tcpx"), inter_gb_s=100, cards=4)).algorithm
            == "ring"
        )
    assert choose_algorithm("all_reduce", LARGE, PAIR, replace(h100(2, "tcpxo"), inter_gb_s=200)).algorithm == "tree"
    assert choose_algorithm("all_reduce", LARGE, Group(8, 8), h100(1, "tcpx")).algorithm == "nvls"


def test_send_across_nodes_uses_one_card_and_two_channels() -> None:
    """Published: 25 GB/s on a card of 400 Gbit/s, on ten nodes with one GPU and with four."""
    sent = [LARGE / collective_time_s("send", LARGE, Group(10 * gpus, gpus), h100(10)) / 1e9 for gpus in (1, 4)]
    assert sent == pytest.approx([25, 25], rel=0.05)
    slow = replace(h100(10), inter_gb_s=100)
    assert LARGE / collective_time_s("send", LARGE, Group(80, 8), slow) / 1e9 < 12.5


def test_small_sends_inside_a_node_use_few_channels() -> None:
    """Published for eight B200s: 85 GB/s up to 64 MiB, constant time up to 256 MiB, then the rate of the links."""
    node = replace(h100(1), gpu=load_gpu("b200"), intra_gb_s=900)
    times = {size: collective_time_s("send", size * 2**20, Group(8, 8), node) * 1e6 for size in (16, 64, 256, 16384)}
    assert times[64] == pytest.approx(793, rel=0.1)
    assert times[256] == pytest.approx(times[64], rel=0.05)
    assert times[16384] == pytest.approx(25904, rel=0.05)
    assert collective_time_s("send", 2**24, Group(2, 2), node) < times[16] * 1e-6 / 2


def test_all_to_all_across_nodes_loses_a_tenth_of_card_bandwidth() -> None:
    """Published shares of card bandwidth: 0.84 on two A100 nodes and 0.92 on ten H100 nodes; a ring: 0.94 and 0.98."""
    cards = 79 / 80 * 50 * 80 / 72
    assert 0.84 * cards < bus_gb_s("all_to_all", Group(80, 8), h100(10)) < 0.92 * cards


def test_slingshot_is_a_separate_network_kind() -> None:
    assert parse_network("Slingshot 4x200Gbps/node", 4).kind == "slingshot"
    alps = System(
        name="alps",
        gpu=load_gpu("gh200"),
        gpus_per_node=4,
        nodes=16,
        intra_gb_s=450,
        inter_gb_s=100,
        network="slingshot",
    )
    assert bus_gb_s("all_reduce", Group(64, 4), alps) == pytest.approx(92, rel=0.05)


def test_single_row_has_less_weight_than_a_curve() -> None:
    curve = MeasuredCollective("all_reduce", Group(8, 8), h100(1), (2e9,) * 12, (7700.0,) * 12)
    off = replace(curve, system=replace(h100(1), name="off"), times_us=(9000.0,) * 12)
    constants = parse_constants(PRIOR_CONSTANTS)
    single = replace(off, sizes=off.sizes[:1], times_us=off.times_us[:1])
    assert loss([curve], constants) < loss([curve, single], constants) < loss([curve, off], constants)


def test_every_shared_constant_is_fitted() -> None:
    """Each constant belongs to the fit, and changing it invalidates the cached error."""
    assert {*CONSTANTS_OF_EVERY_OP, *(name for names in CONSTANTS_BY_OP.values() for name in names)} == set(
        SHARED_CONSTANTS
    )
    for name in SHARED_CONSTANTS:
        op: Op = next((op for op, names in CONSTANTS_BY_OP.items() if name in names), "all_reduce")
        group = Group(64, 8)
        measured = [MeasuredCollective(op, group, h100(8), (1e6, 1e8, 1e10), (100.0, 1e3, 1e5))]
        cache: ErrorCache = {}
        loss(measured, load_fitted_constants(), cache)
        loss(measured, replace(load_fitted_constants(), **{name: getattr(load_fitted_constants(), name) * 0.9}), cache)
        assert len(cache) == 2, name
