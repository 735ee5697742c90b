"""up before it makes anything: what the account says against the cluster ends it, what may be is said."""

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
from tests.infra.targets.aws.preflight.conftest import Answered
from tests.infra.targets.aws.preflight.test_command import muster, stacks
from tests.infra.targets.aws.preflight.test_live_prices import product
from tests.infra.targets.aws.specs import group, spec
from tests.moto_server import Moto

__all__ = ["stacks"]

READS = ("Describe", "Get", "List", "Simulate", "GET ", "HEAD ")
# Always with DryRun, as tests/infra/targets/aws/preflight/test_launches.py holds.
TRIES = ("RunInstances",)


def test_what_the_account_lacks_ends_it_before_anything_is_made(stacks: Path, aws: Moto) -> None:
    done = muster(stacks, "up", "--stack", "block", **aws.environment())
    assert done.returncode == BAD_INPUT
    assert "Pulumi.block.yaml is invalid; nothing was started" in done.stderr
    assert "'cr-0123456789abcdef0' does not exist in us-east-1" in done.stderr
    assert not (stacks / "home").exists()
    assert [call.action for call in aws.calls if not call.action.startswith((*READS, *TRIES))] == []


def test_without_preflight_nothing_is_asked_but_who_is_asking(aws: Moto, capsys: pytest.CaptureFixture[str]) -> None:
    flight = account.clear_for_creation(dear(usd=6), [], None, screen, full=False)
    assert (flight.issues, flight.by_todays_prices) == ([], False)
    assert set(aws.count()) == {"GetCallerIdentity", "DescribeInstances"}
    assert "no pre-flight: quotas, zones, capacity, images, rights and today's prices" in capsys.readouterr().out


def test_with_it_missing_the_way_on_is_open(stacks: Path, aws: Moto) -> None:
    """As far as Pulumi's tools, which are not where this looks for them."""
    env = {**aws.environment(), "MUSTER_CACHE": str(stacks / "cache"), "PATH": "/usr/bin:/bin"}
    done = muster(stacks, "up", "--stack", "block", "--no-preflight", **env)
    assert "the Pulumi CLI is not installed" in done.stderr
    assert "0.20 to 4.35 USD per hour on target aws (instance prices of 2026-08-22, us-east-1; today's " in done.stdout
    assert "`make cost STACK=block` shows each part" in done.stdout


@pytest.mark.parametrize(
    ("budget", "g6_today", "over"),
    [(5, "2.5", (False, True)), (4, "1.0", (True, False)), (3, "2.5", (True, True)), (9, "2.5", (False, False))],
)
def test_the_budget_is_judged_by_todays_prices(
    answered: Answered, asked: Any, budget: float, g6_today: str, over: tuple[bool, bool]
) -> None:
    by_table, by_today = over
    answered.answer("pricing", "GetProducts", prices({"g6.8xlarge": g6_today, "m7i.xlarge": "0.2", "m7i.large": "0.1"}))
    described = dear(usd=budget)
    found = validate(described)
    assert ("over_budget" in [issue.code for issue in found]) is by_table
    flight, said = asked(described, found)
    assert ("over_budget" in [issue.code for issue in flight.issues]) is by_today
    assert flight.by_todays_prices
    assert "budget checked against instance prices of today, " in said


def test_the_table_judges_where_aws_tells_no_prices(answered: Answered, asked: Any) -> None:
    answered.refuse("pricing", "GetProducts", "AccessDeniedException")
    described = dear(usd=4)
    flight, said = asked(described, validate(described))
    assert "over_budget" in [issue.code for issue in flight.issues]
    assert not flight.by_todays_prices
    assert "budget checked against instance prices of 2026-08-22, us-east-1; today's could not be read" in said


@pytest.fixture
def asked(answered: Answered, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setattr(account, "find_account", lambda _spec: answered.account)

    def ask(described: ClusterSpec, issues: list[Any]) -> tuple[account.Flight, str]:
        flight = account.clear_for_creation(described, issues, None, screen, full=True)
        return flight, capsys.readouterr().out

    return ask


def prices(usd: dict[str, str]) -> Any:
    def answer(params: dict[str, Any]) -> dict[str, Any]:
        (wanted,) = (one["Value"] for one in json.loads(params["body"])["Filters"] if one["Field"] == "instanceType")
        return {"PriceList": [json.dumps(product(usd[wanted]))]}

    return answer


def dear(usd: float) -> ClusterSpec:
    """By the table 4.57 USD per hour at most."""
    return spec(groups=group(instance_type="g6.8xlarge"), budget={"usd_per_hour": usd})
