"""Predictions of the trainer's own all-reduces: bytes from the schedules, and the busier of processor and link."""

from __future__ import annotations

import pytest

from simulator.collectives.patterns import Machine, Traffic, count_traffic, predict_seconds

MACHINE = Machine(node_gb_s=1.0, step_us=100.0, link_gb_s=0.025)


def test_traffic_has_the_formulas_of_the_patterns() -> None:
    # Each of 4 ranks sends 2 * 3/4 of the tensor, and in a ring one rank of each node sends it to the other node.
    assert count_traffic("ring", 4, 2) == Traffic(total=3.0, to_other_nodes=1.5, steps=6)
    # Each rank sends 2 * 1/2 inside its node, and 2 * 1/2 of its half to the other one.
    assert count_traffic("hierarchical", 4, 2) == Traffic(total=3.0, to_other_nodes=1.0, steps=4)
    assert count_traffic("halving_doubling", 4, 2) == Traffic(total=3.0, to_other_nodes=1.0, steps=4)
    assert count_traffic("hierarchical", 4, 4).to_other_nodes == 0
    assert count_traffic("hierarchical", 8, 1) == count_traffic("ring", 8, 1)


def test_the_bound_of_hierarchical_over_ring_is_one_and_a_half_on_a_slow_link() -> None:
    ring, hierarchical = (predict_seconds(name, 1 << 30, 4, 2, MACHINE) for name in ("ring", "hierarchical"))
    assert ring / hierarchical == pytest.approx(1.5, rel=1e-3)


def test_the_slower_of_processor_and_link_counts_and_small_messages_take_their_steps() -> None:
    slow_processor = Machine(node_gb_s=0.01, step_us=100.0, link_gb_s=0.025)
    assert predict_seconds("ring", 10**9, 4, 2, slow_processor) == pytest.approx(300, rel=1e-3)
    assert predict_seconds("ring", 10**9, 4, 2, MACHINE) == pytest.approx(60, rel=1e-3)
    assert predict_seconds("tree", 8, 4, 4, MACHINE) == pytest.approx(4 * 100e-6, rel=1e-3)


def test_other_patterns_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^pattern: 'star'; allowed: ring, halving_doubling, tree, hierarchical$"):
        count_traffic("star", 4, 2)


def test_nodes_that_do_not_divide_the_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^ranks_per_node is 4, but must divide the number of ranks, 6$"):
        count_traffic("ring", 6, 4)
