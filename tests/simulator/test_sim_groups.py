"""The groups of ranks that communicate in a layout, and how many groups share network cards."""

from __future__ import annotations

import pytest

from simulator.collectives import Group, collective_time_s, layout_groups
from simulator.layout import Layout
from simulator.machines.instances import system


@pytest.mark.parametrize("instance", ["p5.48xlarge", "g6e.48xlarge"])
def test_ranks_are_grouped_by_node_with_and_without_nvlink(instance: str) -> None:
    machines = system(instance, 2)
    assert layout_groups.data_group(Layout(dp=16, global_batch=16), machines) == Group(16, 8)
    assert layout_groups.tensor_group(Layout(dp=2, tp=8, global_batch=2), machines) == Group(8, 8)


def test_concurrent_groups_share_network_cards() -> None:
    machines = system("p5.48xlarge", 4)
    across = layout_groups.data_group(Layout(dp=4, tp=8, global_batch=4), machines)
    assert across == Group(4, 1, sharing=8)
    pairs = layout_groups.data_group(Layout(dp=8, tp=4, global_batch=8), machines)
    assert pairs == Group(8, 2, sharing=4)
    # Each of the eight groups has an eighth of the cards: together they are as fast as one group over all ranks.
    size = 2**32
    assert collective_time_s("all_gather", size / 8, across, machines) > 0.7 * collective_time_s(
        "all_gather", size, Group(32, 8), machines
    )


def test_pipeline_groups_of_a_node_share_network_cards() -> None:
    assert layout_groups.pipeline_group(Layout(tp=8, pp=4, global_batch=4), system("p5.48xlarge", 4)) == Group(
        2, 1, sharing=8
    )
