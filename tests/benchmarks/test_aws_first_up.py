"""The cost of static nodes that wait for the controller during the first `up`."""

from __future__ import annotations

import pytest

from benchmarks.aws_first_up import EXAMPLES, Order, Phases, make_figures, predict_first_up
from cluster.catalog.prices import instance_price
from infra.targets.registry import read_spec

PHASES = Phases(controller_boot=2, slurm_build=10, daemons=2, environment=6, node=8, gate=1)
H200 = read_spec(EXAMPLES[0])


@pytest.mark.parametrize(
    ("order", "minutes", "billed", "idle"), [("together", 21, 21, 12), ("after the controller", 29, 9, 0)]
)
def test_nodes_are_billed_from_their_launch_until_the_gate(
    order: Order, minutes: float, billed: float, idle: float
) -> None:
    first = predict_first_up(H200, order, PHASES)
    assert (first.minutes, first.billed_minutes, first.idle_minutes) == (minutes, billed, idle)
    price = instance_price("p5en.48xlarge", "us-east-1")
    assert price
    assert first.billed_usd == pytest.approx(2 * price.usd * billed / 60)


def test_a_controller_that_is_ready_first_leaves_no_idle_nodes() -> None:
    baked = Phases(controller_boot=2, slurm_build=0, daemons=1, environment=0, node=8, gate=1)
    assert predict_first_up(H200, "together", baked).idle_usd == 0


def test_both_orders_are_reported_without_a_verdict() -> None:
    """The values are computed, not measured, so a bound on them could not fail."""
    figures = make_figures("h200", H200, PHASES)
    price = figures[0].reference
    assert [(figure.reference, figure.verdict) for figure in figures] == [(price, "")] * 4 + [("", "")] * 2
    assert [round(figure.value / figures[3].value * 9, 6) for figure in figures[:4]] == [12, 0, 21, 9]
