"""The idle cost of a first `up`: billed time of GPU nodes before a job, against a launch of all machines at once."""

from __future__ import annotations

import pytest

from infra.targets.aws.rehearse.idle_cost import SetUpTime, compute_idle_usd, convert_to_aws, describe_idle_cost

NODE = SetUpTime(pending_s=20, total_s=200, usd_per_hour=60)
CONTROLLER = SetUpTime(pending_s=10, total_s=1820, usd_per_hour=0.2)


def test_delays_that_were_shortened_count_in_full() -> None:
    # 30 s on this machine, of which 10 s stand for 200 s on AWS.
    assert convert_to_aws(30, 10, speed=20) == 220
    assert convert_to_aws(30, 10, speed=1) == 30


def test_a_node_is_billed_from_the_end_of_pending_until_it_is_ready() -> None:
    assert compute_idle_usd([NODE, NODE]) == pytest.approx(2 * 180 / 3600 * 60)


def test_nodes_that_are_launched_with_the_controller_wait_for_it() -> None:
    assert compute_idle_usd([NODE], CONTROLLER) == pytest.approx(1800 / 3600 * 60)
    quick = SetUpTime(pending_s=10, total_s=100, usd_per_hour=0.2)
    assert compute_idle_usd([NODE], quick) == compute_idle_usd([NODE])


def test_the_line_compares_both() -> None:
    assert describe_idle_cost([NODE], CONTROLLER) == (
        "idle GPU nodes: 3.00 USD for 1 node, up to 180 s each on AWS before a job could run; "
        "30.00 USD if all machines were launched at once, 90% less"
    )


def test_a_cluster_without_static_gpu_nodes_has_no_line() -> None:
    assert not describe_idle_cost([], CONTROLLER)
