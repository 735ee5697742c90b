"""The nights of injected errors: each site meets every code, and each night every code is met."""

from __future__ import annotations

from infra.targets.aws.rehearse.errors.call_sites import visible_code
from tests.infra.targets.aws.with_engine.call_sites import OneErrorPerSite, choose_code, read_sites
from tests.infra.targets.aws.with_engine.test_errors_everywhere import ERRORS

NIGHTS = range(739_000, 739_000 + len(ERRORS))


def test_each_site_meets_every_code_once_in_as_many_nights_as_there_are_codes() -> None:
    for position in range(len(read_sites())):
        assert sorted(choose_code(ERRORS, position, night) for night in NIGHTS) == sorted(ERRORS)


def test_each_code_is_met_every_night() -> None:
    for night in NIGHTS:
        assert {choose_code(ERRORS, position, night) for position in range(len(read_sites()))} == set(ERRORS)


def test_the_list_of_sites_is_sorted_and_has_none_twice() -> None:
    assert list(read_sites()) == sorted(set(read_sites()))


def test_a_site_fails_once_and_an_unlisted_one_is_remembered() -> None:
    errors = OneErrorPerSite(("A", "B", "C"), 1, sites=("ec2 DeleteVpc",))
    calls = [errors("ec2", action, {}) for action in ("DeleteVpc", "DeleteVpc", "CreateVpc")]
    assert calls == ["B", "", "C"]
    assert errors.unlisted == ["ec2 CreateVpc"]


def test_an_answer_to_head_has_a_status_and_no_code() -> None:
    assert visible_code("s3 HEAD /bucket", "AccessDenied") == "403"
    assert visible_code("s3 GET /bucket?tagging", "AccessDenied") == "AccessDenied"
