"""The check of the end of a cluster: an error for a new cluster, a warning for one whose machines have the end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from infra.targets.aws.preflight.account import Account, Identity
from infra.targets.aws.preflight.checks import CHECKS
from infra.targets.aws.preflight.cluster_end import check_end
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.spec import END_FORMAT
from tests.infra.targets.aws.preflight.issue_text import format_issues
from tests.infra.targets.aws.specs import spec


def check(ends_at: str | None, *, exists: bool) -> list[str]:
    section = {"region": "us-east-1"} | ({"ends_at": ends_at} if ends_at else {})
    # The check asks the account nothing.
    subject = Subject(spec(aws=section), cast("Account", None), Identity("123456789012", ""), exists=exists)
    return format_issues(check_end(subject))


def in_minutes(minutes: int) -> str:
    return (datetime.now(UTC) + timedelta(minutes=minutes)).strftime(END_FORMAT)


def test_an_end_less_than_an_hour_ahead_is_an_error_for_a_new_cluster() -> None:
    end = in_minutes(58)
    assert check(end, exists=False) == [
        f"error end_near aws.ends_at: '{end}' is less than an hour ahead; allowed: an hour or more, so that the "
        "cluster can be used; fix: write a later time, or remove it"
    ]


def test_it_is_a_warning_for_an_existing_cluster() -> None:
    end = in_minutes(58)
    assert check(end, exists=True) == [
        f"warning end_near aws.ends_at: '{end}' is less than an hour ahead: every machine ends itself then, jobs or "
        "not; fix: save what you need; `make teardown`, then write a later time or remove it"
    ]


@pytest.mark.parametrize("exists", [True, False])
def test_a_later_end_or_none_has_no_issues(exists: bool) -> None:
    assert check(in_minutes(63), exists=exists) == []
    assert check(None, exists=exists) == []


def test_the_pre_flight_runs_it() -> None:
    assert check_end in [listed.run for listed in CHECKS]
