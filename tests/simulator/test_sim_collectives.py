"""Start-up times as NCCL prints them, the bytes sent, and the algorithm chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.collectives import Group, Op, choose_algorithm, collective_time_s
from simulator.collectives.algorithms import Candidate, list_candidates
from simulator.collectives.constants import Constants, Network, load_fitted_constants
from simulator.collectives.fabric import build_fabric
from tests.simulator.collective_systems import h100, laptop, v100

PLAIN: Constants = replace(
    load_fitted_constants(),
    launch_us=0.0,
    networks={
        **load_fitted_constants().networks,
        **dict.fromkeys(("infiniband", "infiniband_edr"), Network(share=1.0, hop_us=0.0)),
    },
)
"""NCCL's own tuning table, without the fitted launch time, network share and hop latency."""
NODE = Group(8, 8)
PAIR = Group(16, 8)


def find_candidate(op: Op, group: Group, algorithm: str, protocol: str) -> Candidate:
    candidates = list_candidates(op, build_fabric(group, h100(group.ranks // group.per_node), PLAIN), PLAIN)
    return next(
        candidate for candidate in candidates if (candidate.algorithm, candidate.protocol) == (algorithm, protocol)
    )


# NCCL_DEBUG_SUBSYS=TUNING printed these on two nodes, with eight GPUs each and with one GPU each.
@pytest.mark.parametrize(
    ("op", "group", "algorithm", "protocol", "start_us"),
    [
        ("all_reduce", PAIR, "tree", "LL", 25.2),
        ("all_reduce", PAIR, "tree", "LL128", 48.5),
        ("all_reduce", PAIR, "tree", "Simple", 92.4),
        ("all_reduce", PAIR, "ring", "LL128", 75.2),
        ("all_reduce", PAIR, "ring", "Simple", 131.6),
        ("all_reduce", Group(2, 1), "tree", "LL", 16.8),
        ("all_reduce", Group(2, 1), "tree", "LL128", 31.0),
        ("all_reduce", Group(2, 1), "tree", "Simple", 36.4),
        ("all_reduce", Group(2, 1), "ring", "LL", 16.6),
        ("all_reduce", Group(2, 1), "ring", "LL128", 31.0),
        ("all_reduce", Group(2, 1), "ring", "Simple", 36.4),
        ("all_gather", Group(2, 1), "ring", "LL", 11.6),
        ("all_gather", Group(2, 1), "ring", "LL128", 22.5),
        ("reduce_scatter", Group(2, 1), "ring", "Simple", 22.4),
        # Computed with the formulas of NCCL's tuning.cc.
        ("all_reduce", NODE, "ring", "Simple", 8.4 + 14 * 3.4),
        ("all_reduce", NODE, "nvls", "Simple", 25.0),
        ("all_reduce", Group(64, 8), "nvls_tree", "Simple", 25.0 + 2 * 3 * 20.9),
        ("all_gather", Group(16, 1), "pat", "Simple", 8.0 + 4 * 14 / 3.5 + 2.8 * 16),
    ],
)
def test_start_up_time_matches_nccl_table(op: Op, group: Group, algorithm: str, protocol: str, start_us: float) -> None:
    assert find_candidate(op, group, algorithm, protocol).start_us == pytest.approx(start_us)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize(("op", "rounds"), [("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)])
def test_a_ring_sends_its_share_of_the_array(op: Op, rounds: int, ranks: int) -> None:
    ring = find_candidate(op, Group(ranks, ranks), "ring", "Simple")
    bus_gb_s = load_fitted_constants().links["nvlink4"].ring * 450
    assert ring.us_per_byte * 1e3 * bus_gb_s == pytest.approx(rounds * (ranks - 1) / ranks)
    whole = find_candidate("broadcast", Group(ranks, ranks), "ring", "Simple")
    assert whole.us_per_byte * 1e3 * bus_gb_s == pytest.approx(1)


def test_tree_sends_the_array_once_on_two_nodes_and_twice_on_more() -> None:
    slow = replace(h100(2), inter_gb_s=40.0)
    cost = [
        next(
            candidate.us_per_byte
            for candidate in list_candidates("all_reduce", build_fabric(Group(8 * nodes, 8), slow, PLAIN), PLAIN)
            if candidate.algorithm == "tree" and candidate.protocol == "Simple"
        )
        for nodes in (2, 4)
    ]
    assert cost[0] == pytest.approx(1e-3 / 40)
    assert cost[1] == pytest.approx(2e-3 / 40 / load_fitted_constants().many_tree_share)


@pytest.mark.parametrize(
    ("size", "group", "expected"),
    [
        # github.com/stas00/ml-engineering network/README.md: LL up to 1 MiB on eight H200, then NVLS; a ring on four.
        (2**16, NODE, ("ring", "LL")),
        (2**33, NODE, ("nvls", "Simple")),
        (2**33, Group(4, 4), ("ring", "Simple")),
        (2**10, PAIR, ("tree", "LL")),
        (2**33, PAIR, ("nvls_tree", "Simple")),
    ],
)
def test_the_algorithm_depends_on_size_and_group(size: int, group: Group, expected: tuple[str, str]) -> None:
    choice = choose_algorithm("all_reduce", size, group, h100(group.ranks // group.per_node))
    assert (choice.algorithm, choice.protocol) == expected


def test_the_chosen_algorithm_takes_the_predicted_time() -> None:
    for size in (2**10, 2**20, 2**30):
        assert choose_algorithm("all_reduce", size, PAIR, h100(2)).time_us(size) * 1e-6 == collective_time_s(
            "all_reduce", size, PAIR, h100(2)
        )


def test_groups_that_share_network_cards_slow_each_other() -> None:
    alone = collective_time_s("all_reduce", 2**30, Group(16, 8), h100(2, "efa"))
    assert collective_time_s("all_reduce", 2**30, Group(16, 8, sharing=4), h100(2, "efa")) > 2 * alone


def test_groups_with_their_own_network_cards_are_not_slowed() -> None:
    """Data parallel across nodes and tensor parallel inside them: each GPU has its own card."""
    alone = collective_time_s("all_reduce", 2**28, Group(16, 1), h100(16))
    assert collective_time_s("all_reduce", 2**28, Group(16, 1, sharing=8), h100(16)) == alone


def test_gpus_share_network_cards_if_there_are_fewer_cards() -> None:
    system = replace(h100(2), cards=4, inter_gb_s=80)
    alone = collective_time_s("send", 2**30, Group(2, 1), system)
    assert collective_time_s("send", 2**30, Group(2, 1, sharing=8), system) == pytest.approx(2 * alone, rel=0.01)


def test_all_to_all_across_nodes_is_limited_by_network_cards() -> None:
    size = 2**30
    bound = 8 * size * 8 / 16 / 400e9
    assert bound < collective_time_s("all_to_all", size, PAIR, h100(2)) < 1.3 * bound


def test_v100_cube_mesh_has_few_rings_for_five_gpus() -> None:
    five, four = (collective_time_s("all_reduce", 2**30, Group(n, n), v100()) for n in (5, 4))
    assert five > 2 * four


def test_nvlink_rack_is_one_domain() -> None:
    rack = replace(h100(18), gpus_per_node=4, nvlink_domain=72)
    assert choose_algorithm("all_reduce", 2**33, Group(72, 4), rack).algorithm == "nvls"


def test_loopback_uses_measured_rate_and_latency() -> None:
    group, size = Group(2, 1), 2**28
    assert collective_time_s("send", size, group, laptop(2)) == pytest.approx(size / 1.5e9, rel=0.01)
    slow, quick = (collective_time_s("send", 8, group, laptop(2, network_us=us)) for us in (500.0, 50.0))
    assert slow - quick == pytest.approx(450e-6)


def test_one_rank_exchanges_nothing() -> None:
    assert collective_time_s("all_reduce", 2**30, Group(1, 1), h100(1)) == 0
    with pytest.raises(ValueError, match=r"group.ranks: 1; allowed: 2 or more"):
        choose_algorithm("all_reduce", 8, Group(1, 1), h100(1))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, 8), r"group.ranks: 0; allowed: 1 or more"),
        ((8, 0), r"group.per_node: 0; allowed: 1 or more"),
        ((8, 8, 0), r"group.sharing: 0; allowed: 1 or more"),
        ((12, 8), r"group.per_node: 8; allowed: a divisor of the group's 12 ranks"),
    ],
)
def test_invalid_group_is_rejected(numbers: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Group(*numbers)


def test_unknown_operation_is_rejected() -> None:
    unknown: Any = "gather"
    with pytest.raises(ValueError, match=r"op: 'gather'; allowed: all_reduce, .*send"):
        collective_time_s(unknown, 8, PAIR, h100(2))


def test_unknown_network_error_lists_allowed_networks() -> None:
    with pytest.raises(ValueError, match=r"system.network: 'carrier pigeon'; allowed: efa, efa1, .*loopback"):
        collective_time_s("all_reduce", 8, PAIR, h100(2, "carrier pigeon"))
