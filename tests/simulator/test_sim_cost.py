"""Cost and electricity of a run, compared with figures computed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.catalog.prices import instance_price
from infra.targets.aws.cost import cost
from infra.targets.registry import read_spec as read
from simulator.machines.instances import system
from simulator.whole_run import energy
from simulator.whole_run.cost import DAY_S, HOUR_S, Tariff, block_s, stored_usd, tariff
from trainer.config.errors import ConfigError

STACKS = Path(__file__).parents[2] / "stacks"
LUSTRE = read(STACKS / "Pulumi.aws-p5en-lustre.yaml")
PAIR = read(STACKS / "Pulumi.aws-g6-pair.yaml")


def test_hourly_cost_of_a_stack_matches_infra() -> None:
    prices = tariff(LUSTRE, "h200", "p5en.48xlarge", "on-demand")
    assert prices
    assert prices.usd(2, HOUR_S) == pytest.approx(cost(LUSTRE).usd_per_hour)


def test_spot_tariff_uses_the_spot_price() -> None:
    on_demand, spot = (tariff(LUSTRE, "h200", "p5.48xlarge", way) for way in ("on-demand", "spot"))
    prices = [instance_price("p5.48xlarge", "us-east-1", spot=way) for way in (False, True)]
    assert on_demand
    assert spot
    assert prices[0]
    assert prices[1]
    assert on_demand.node - spot.node == pytest.approx(prices[0].usd - prices[1].usd)
    assert on_demand.fixed == spot.fixed > 0
    assert on_demand.priced_on == prices[0].on


def test_instance_without_a_price_has_no_tariff() -> None:
    assert tariff(LUSTRE, "h200", "p5e.48xlarge", "on-demand") is None
    assert tariff(LUSTRE, "h200", "p6-b200.48xlarge", "block") is None


def test_cost_of_a_run_is_nodes_plus_fixed() -> None:
    prices = Tariff(node=60, fixed=2, purchase="on-demand", priced_on=cost(LUSTRE).priced_on)
    assert prices.usd(nodes=4, seconds=10 * HOUR_S) == pytest.approx(10 * (4 * 60 + 2))


def test_capacity_block_is_paid_until_its_end() -> None:
    prices = tariff(LUSTRE, "h200", "p5.48xlarge", "block")
    assert prices
    assert prices.usd(1, 25 * HOUR_S) == pytest.approx(48 * prices.node + 25 * prices.fixed)


@pytest.mark.parametrize(("days", "bought"), [(0.1, 1), (13.5, 14), (14.5, 21), (21, 21), (182, 182), (183, 183)])
def test_block_length_is_rounded_up(days: float, bought: float) -> None:
    assert block_s(days * DAY_S) == bought * DAY_S


@given(st.floats(1, 400 * DAY_S))
def test_block_covers_the_run(seconds: float) -> None:
    assert block_s(seconds) >= seconds
    assert block_s(seconds) <= seconds + 7 * DAY_S


def test_efs_is_billed_by_stored_bytes() -> None:
    assert stored_usd(PAIR, 100, 730 * HOUR_S) == pytest.approx(30)
    assert stored_usd(LUSTRE, 100, 730 * HOUR_S) == 0


def test_energy_of_eight_h100s() -> None:
    """Eight H100s compute for 80 % of an hour."""
    energy_kwh = energy.kwh(system("p5.48xlarge", 1), HOUR_S, 0.8)
    assert energy_kwh == pytest.approx(8 * (700 * (0.8 + 0.2 * 0.5) + 290) * 1.14 / 1000)


def test_system_is_built_from_the_catalog() -> None:
    machines = system("p5en.48xlarge", 4)
    assert (machines.gpus, machines.gpu.name, machines.network) == (32, "h200", "efa")
    assert machines.inter_gb_s == pytest.approx(400)
    assert system("p5en.48xlarge", 4, fabric="tcp").network == "ethernet"
    assert system("p4d.24xlarge", 1).gpu.memory_gb == 40


@pytest.mark.parametrize(
    ("name", "message"),
    [("p5.48xlrge", "nearest: p5.48xlarge"), ("m7i.large", "has no GPU"), ("trn2u.48xlarge", "is not supported")],
)
def test_unsupported_instance_error_lists_supported_instances(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        system(name, 1)
    assert "p5en.48xlarge" in str(caught.value)
