"""The pre-flight of `up`: errors stop it before anything is created; the budget is checked at live prices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.spec import ClusterSpec
from infra.engine.stop import BAD_INPUT
from infra.targets.aws import account
from infra.validate import validate
from muster.commands import screen
from tests.infra.targets.aws.preflight.conftest import CannedAws
from tests.infra.targets.aws.preflight.test_command import PAIR, muster, stacks
from tests.infra.targets.aws.preflight.test_live_prices import product
from tests.infra.targets.aws.specs import group, spec
from tests.moto_server import Moto

__all__ = ["stacks"]

READS = ("Describe", "Get", "List", "Simulate", "GET ", "HEAD ")
# Always with DryRun, as test_launches.py checks.
DRY_RUNS = ("RunInstances",)


@pytest.mark.fault(27)
def test_an_error_of_the_account_stops_up_before_anything_is_created(stacks: Path, aws: Moto) -> None:
    done = muster(stacks, "up", "--stack", "block", **aws.environment())
    assert done.returncode == BAD_INPUT
    assert "Pulumi.block.yaml is invalid; nothing was started" in done.stderr
    assert "'cr-0123456789abcdef0' does not exist in us-east-1" in done.stderr
    assert not (stacks / "home").exists()
    assert [call.action for call in aws.calls if not call.action.startswith((*READS, *DRY_RUNS))] == []


def test_a_type_that_the_zone_does_not_sell_stops_up_before_anything_is_created(stacks: Path, aws: Moto) -> None:
    """moto has a copy of AWS's offerings; nothing of this stack is sold in us-east-1e."""
    in_zone_e = PAIR.replace("aws: {region: us-east-1}", "aws: {region: us-east-1, zones: [us-east-1e]}")
    (stacks / "Pulumi.pair.yaml").write_text(in_zone_e)
    done = muster(stacks, "up", "--stack", "pair", **aws.environment())
    assert done.returncode == BAD_INPUT
    assert "nothing was started" in done.stderr
    for name in ("g6.8xlarge", "m7i.large"):
        assert f"{name} is not sold in us-east-1e; it is sold in us-east-1a" in done.stderr
    assert [call.action for call in aws.calls if not call.action.startswith((*READS, *DRY_RUNS))] == []


def test_without_preflight_only_identity_and_instances_are_read(aws: Moto, capsys: pytest.CaptureFixture[str]) -> None:
    flight = account.clear_for_creation(expensive_spec(usd=6), [], None, screen, full=False)
    assert (flight.issues, flight.by_todays_prices) == ([], False)
    assert set(aws.count()) == {"GetCallerIdentity", "DescribeInstances"}
    assert "no pre-flight: quotas, zones, capacity, images, permissions and today's prices" in capsys.readouterr().out


def test_without_preflight_up_continues_despite_a_missing_reservation(stacks: Path, aws: Moto) -> None:
    """It continues until it needs the Pulumi CLI, which this PATH lacks."""
    env = {**aws.environment(), "MUSTER_CACHE": str(stacks / "cache"), "PATH": "/usr/bin:/bin"}
    done = muster(stacks, "up", "--stack", "block", "--no-preflight", **env)
    assert "the Pulumi CLI is not installed" in done.stderr
    assert "0.19 to 4.34 USD per hour on target aws (instance prices of 2026-08-22, us-east-1; today's " in done.stdout
    assert "`make cost STACK=block` shows each part" in done.stdout


@pytest.mark.parametrize(
    ("budget", "g6_today", "over"),
    [(5, "2.5", (False, True)), (4, "1.0", (True, False)), (3, "2.5", (True, True)), (9, "2.5", (False, False))],
)
def test_the_budget_is_checked_at_live_prices(
    canned_aws: CannedAws, run_preflight: Any, budget: float, g6_today: str, over: tuple[bool, bool]
) -> None:
    by_table, by_today = over
    canned_aws.answer(
        "pricing", "GetProducts", prices({"g6.8xlarge": g6_today, "m7i.xlarge": "0.2", "m7i.large": "0.1"})
    )
    described = expensive_spec(usd=budget)
    issues = validate(described)
    assert ("over_budget" in [issue.code for issue in issues]) is by_table
    flight, output = run_preflight(described, issues)
    assert ("over_budget" in [issue.code for issue in flight.issues]) is by_today
    assert flight.by_todays_prices
    assert "budget checked against instance prices of today, " in output


def test_without_live_prices_the_table_is_used_for_the_budget(canned_aws: CannedAws, run_preflight: Any) -> None:
    canned_aws.refuse("pricing", "GetProducts", "AccessDeniedException")
    described = expensive_spec(usd=4)
    flight, output = run_preflight(described, validate(described))
    assert "over_budget" in [issue.code for issue in flight.issues]
    assert not flight.by_todays_prices
    assert "budget checked against instance prices of 2026-08-22, us-east-1; today's prices could not be read" in output


@pytest.fixture
def run_preflight(canned_aws: CannedAws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setattr(account, "find_account", lambda _spec: canned_aws.account)

    def run(described: ClusterSpec, issues: list[Any]) -> tuple[account.Flight, str]:
        flight = account.clear_for_creation(described, issues, None, screen, full=True)
        return flight, capsys.readouterr().out

    return run


def prices(usd: dict[str, str]) -> Any:
    def answer(params: dict[str, Any]) -> dict[str, Any]:
        (instance_type,) = (
            entry["Value"] for entry in json.loads(params["body"])["Filters"] if entry["Field"] == "instanceType"
        )
        return {"PriceList": [json.dumps(product(usd[instance_type]))]}

    return answer


def expensive_spec(usd: float) -> ClusterSpec:
    """Return a spec that costs up to 4.57 USD per hour by the price table."""
    return spec(groups=group(instance_type="g6.8xlarge"), budget={"usd_per_hour": usd})
