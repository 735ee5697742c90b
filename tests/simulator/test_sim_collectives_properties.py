"""Properties of all collectives: more bytes, more ranks or slower links never take less time."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from simulator.collectives import Group, Op, collective_time_s
from simulator.collectives.constants import load_fitted_constants
from simulator.collectives.fabric import classify_network
from simulator.hardware.gpus import load_gpu
from simulator.hardware.system import System

OPS: st.SearchStrategy[Op] = st.sampled_from(get_args(Op))
SIZES = st.integers(1, 2**36)
NETWORKS = st.sampled_from(["efa", "infiniband", "roce", "slingshot", "tcpx", "tcpxo", "ethernet", "loopback"])


@st.composite
def systems(draw: st.DrawFn) -> System:
    name, rate = draw(st.sampled_from([("a100", 300.0), ("h100", 450.0), ("b200", 900.0), ("l4", 25.0)]))
    return System(
        name=name,
        gpu=load_gpu(name),
        gpus_per_node=8,
        nodes=128,
        intra_gb_s=rate,
        inter_gb_s=draw(st.floats(1, 800)),
        network=draw(NETWORKS),
        cards=draw(st.sampled_from([0, 1, 4, 8, 32])),
    )


@st.composite
def groups(draw: st.DrawFn) -> Group:
    per_node = draw(st.sampled_from([1, 2, 4, 8]))
    return Group(per_node * draw(st.integers(1, 64)), per_node, draw(st.sampled_from([1, 2, 8])))


@given(OPS, SIZES, SIZES, groups(), systems())
def test_more_bytes_never_take_less_time(op: Op, size: int, other_size: int, group: Group, system: System) -> None:
    small, large = sorted((size, other_size))
    assert collective_time_s(op, small, group, system) <= collective_time_s(op, large, group, system)


@given(OPS, SIZES, groups(), systems())
def test_every_time_is_positive_and_finite(op: Op, size: int, group: Group, system: System) -> None:
    time = collective_time_s(op, size, group, system)
    assert 0 < time < float("inf") if group.ranks > 1 else time == 0


@given(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]), SIZES, groups(), st.integers(1, 8), systems())
def test_more_nodes_never_take_less_time(op: Op, size: int, group: Group, times: int, system: System) -> None:
    wider = Group(group.ranks * times, group.per_node, group.sharing)
    alone = group.ranks == group.per_node
    if not alone:
        assert collective_time_s(op, size, group, system) <= collective_time_s(op, size, wider, system) * (1 + 1e-12)


@given(OPS, SIZES, groups(), systems(), st.floats(1, 10))
def test_slower_network_never_takes_less_time(op: Op, size: int, group: Group, system: System, times: float) -> None:
    """Allow 5 % between card generations, because constants are fitted for each generation."""
    faster, slower = replace(system, cards=0), replace(system, inter_gb_s=system.inter_gb_s / times, cards=0)
    kinds = {classify_network(network, load_fitted_constants()) for network in (faster, slower)}
    tolerance = 1e-12 if len(kinds) == 1 else 0.05
    assert collective_time_s(op, size, group, faster) <= collective_time_s(op, size, group, slower) * (1 + tolerance)


@given(OPS, SIZES, groups(), st.integers(1, 8), systems())
def test_concurrent_groups_never_take_less_time(op: Op, size: int, group: Group, times: int, system: System) -> None:
    crowded = replace(group, sharing=group.sharing * times)
    assert collective_time_s(op, size, group, system) <= collective_time_s(op, size, crowded, system)


@given(SIZES, groups(), systems())
def test_all_gather_is_never_faster_than_the_wire(size: int, group: Group, system: System) -> None:
    """Every rank receives (n-1)/n of the array, through its node's network cards or its own links."""
    if group.ranks > group.per_node:
        away = (group.ranks - group.per_node) / group.ranks * size
        assert collective_time_s("all_gather", size, group, system) >= away / (system.inter_gb_s * 1e9)
    inside = (group.ranks - 1) / group.ranks * size
    if group.ranks == group.per_node:
        assert collective_time_s("all_gather", size, group, system) >= inside / (system.intra_gb_s * 1e9)
