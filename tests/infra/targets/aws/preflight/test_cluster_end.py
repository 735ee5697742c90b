"""The check of the end of a cluster: an error for a new cluster, a warning for one whose machines have the end."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from infra.targets.aws import account
from infra.targets.aws.cluster_end import describe_time_left, is_near
from infra.targets.aws.preflight import cluster_end
from infra.targets.aws.preflight.account import Account, Identity
from infra.targets.aws.preflight.checks import CHECKS
from infra.targets.aws.preflight.cluster_end import check_end
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.spec import aws_section, read_end
from infra.validate.update import changes
from muster.commands import screen
from tests.infra.targets.aws.cluster_ends import StoppedClock, end_in_minutes
from tests.infra.targets.aws.preflight.issue_text import format_issues
from tests.infra.targets.aws.specs import spec
from tests.moto_server import REGION, Moto


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (cluster_end, account):
        monkeypatch.setattr(module, "datetime", StoppedClock)


def check(ends_at: str | None, *, exists: bool) -> list[str]:
    section = {"region": "us-east-1"} | ({"ends_at": ends_at} if ends_at else {})
    # The check asks the account nothing.
    subject = Subject(spec(aws=section), cast("Account", None), Identity("123456789012", ""), exists=exists)
    return format_issues(check_end(subject))


def test_an_end_less_than_an_hour_ahead_is_an_error_for_a_new_cluster() -> None:
    assert check(end_in_minutes(58), exists=False) == [
        "error end_near aws.ends_at: '2030-01-31 12:58 UTC' is 57 minutes ahead; allowed: an hour or more, so that the "
        "cluster can be used; fix: write a later time (it is 2030-01-31 12:00 UTC now), or remove it"
    ]


def test_it_is_a_warning_for_an_existing_cluster() -> None:
    end = end_in_minutes(58)
    assert check(end, exists=True) == [
        f"warning end_near aws.ends_at: '{end}' is 57 minutes ahead: every machine ends itself then, even if jobs are "
        "running; fix: save what you need; `make teardown`, then write a later time or remove it"
    ]


@pytest.mark.parametrize("exists", [True, False])
def test_a_later_end_or_none_has_no_issues(exists: bool) -> None:
    assert check(end_in_minutes(63), exists=exists) == []
    assert check(None, exists=exists) == []


@pytest.mark.parametrize("full", [True, False])
def test_up_says_in_how_long_the_machines_end(aws: Moto, capsys: pytest.CaptureFixture[str], full: bool) -> None:
    """Also without the pre-flight: whoever wrote a local time sees it here."""
    del aws
    end = end_in_minutes(181)
    account.clear_for_creation(spec(aws={"region": REGION, "ends_at": end}), [], None, screen, full=full)
    line = f"every machine ends itself at {end}, in 3 hours 0 minutes, even if jobs are running"
    assert line in capsys.readouterr().out.splitlines()
    account.clear_for_creation(spec(), [], None, screen, full=full)
    assert "ends itself" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 minutes"),
        (119, "1 minute"),
        (3600, "1 hour 0 minutes"),
        (2 * 3600 + 60, "2 hours 1 minute"),
        (25 * 3600 + 59, "1 day 1 hour"),
        (3 * 86400, "3 days 0 hours"),
    ],
)
def test_the_time_left_is_in_its_two_largest_units(seconds: int, text: str) -> None:
    now = datetime(2030, 1, 31, 18, tzinfo=UTC)
    assert describe_time_left(now + timedelta(seconds=seconds), now) == text


def test_the_end_is_in_utc_wherever_this_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        section = aws_section(spec(aws={"region": REGION, "ends_at": "2030-01-31 18:00 UTC"}))
        assert section
        end = read_end(section)
        assert end
        assert end.timestamp() == 1896112800
        assert not is_near(section, end - timedelta(hours=1))
        assert is_near(section, end - timedelta(minutes=59, seconds=59))
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(("old", "new"), [(None, "2030"), ("2030", None), ("2030", "2031")])
def test_a_running_cluster_cannot_get_another_end(old: str | None, new: str | None) -> None:
    """Its machines would not learn of it."""
    ends = [f"{year}-01-31 18:00 UTC" if year else None for year in (old, new)]
    before, after = (spec(aws={"region": REGION, "ends_at": end}) for end in ends)
    assert [(change.path, change.policy) for change in changes(before, after)] == [("aws.ends_at", "forbidden")]


def test_the_pre_flight_runs_it() -> None:
    assert check_end in [listed.run for listed in CHECKS]
