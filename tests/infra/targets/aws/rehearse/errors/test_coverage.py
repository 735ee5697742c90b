"""Errors at call sites: which call fails, what counts as handled, and how pairs of both are counted."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from infra.targets.aws.rehearse.errors.call_sites import SITES_FILE, name_site, read_sites, render_sites, visible_code
from infra.targets.aws.rehearse.errors.coverage import Coverage, Exceptions
from infra.targets.aws.rehearse.errors.engine_commands import COMMANDS
from infra.targets.aws.rehearse.errors.injection import Injection
from infra.targets.aws.rehearse.errors.operation_runs import Barrage, spread_codes, spread_transient_codes
from infra.targets.aws.rehearse.errors.pair import Pair
from infra.targets.aws.rehearse.errors.record import Record
from infra.targets.aws.rehearse.errors.rehearse_errors import OPERATION_NAMES
from infra.targets.error_coverage import CommandCoverage

VPC, SUBNET = "ec2 CreateVpc", "ec2 CreateSubnet"
SITES = {"up": (SUBNET, VPC)}


def call(injection: Injection, *actions: str) -> list[str]:
    return [injection("ec2", action, {}) for action in actions]


def judge(output: str, *, failed: bool, code: str = "AccessDenied", calls: int = 1) -> Coverage:
    """Return the coverage after a run in which the first call of CreateVpc failed."""
    injection, coverage = Injection(lambda _site: code), Coverage(SITES)
    call(injection, *["CreateVpc"] * calls)
    coverage.judge("up", injection, output, failed=failed)
    coverage.confirm()
    return coverage


def test_the_list_of_sites_has_all_commands_sorted_and_none_twice() -> None:
    sites = read_sites()
    assert set(sites) == {*COMMANDS, *OPERATION_NAMES}
    assert render_sites((command, site) for command in sites for site in sites[command]) == SITES_FILE.read_text()


def test_the_name_of_a_site_has_no_ids() -> None:
    assert name_site("ec2", "CreateVpc", {"CidrBlock": "10.0.0.0/16"}) == VPC
    assert name_site("s3", "PUT /muster-demo-1", {"query": "versioning"}) == "s3 PUT /bucket?versioning"
    assert name_site("s3", "GET /muster-demo-1/a/b", {"query": ""}) == "s3 GET /bucket/object"
    assert name_site("route53", "GET /2013-04-01/hostedzone/Z0123456789", {}) == "route53 GET /2013-04-01/hostedzone/*"


def test_an_answer_to_head_has_a_status_and_no_code() -> None:
    assert visible_code("s3 HEAD /bucket", "AccessDenied") == "403"
    assert visible_code("s3 GET /bucket?tagging", "AccessDenied") == "AccessDenied"


def test_a_site_fails_once_in_a_run() -> None:
    injection = Injection({VPC: "AccessDenied"}.get)
    assert call(injection, "CreateVpc", "CreateVpc", "CreateSubnet") == ["AccessDenied", "", None]
    assert injection.injected == {VPC: "AccessDenied"}
    assert injection.repeated == {VPC}
    assert injection.called == {VPC, SUBNET}


def test_each_call_can_be_a_site_of_its_own() -> None:
    second = f"{VPC} #2"
    injection = Injection(lambda site: "AccessDenied" if site == second else "", is_numbered=True)
    assert call(injection, "CreateVpc", "CreateVpc", "CreateVpc") == ["", "AccessDenied", ""]
    assert injection.injected == {second: "AccessDenied"}
    assert injection.repeated == {second}


def test_an_error_that_is_named_is_explained() -> None:
    coverage = judge("vpc: AccessDenied: no", failed=True)
    assert coverage.outcomes == {Pair("up", VPC, "AccessDenied"): "explained"}
    assert coverage.problems == []


@pytest.mark.parametrize("output", ["something is wrong", "vpc: AccessDeniedException", "vpc: NotAccessDenied"])
def test_a_failure_that_does_not_name_the_error_is_a_problem(output: str) -> None:
    coverage = judge(output, failed=True, calls=2)
    assert coverage.outcomes == {}
    assert "up: ec2 CreateVpc: AccessDenied: the command failed without naming it" in coverage.problems[0]


def test_a_call_that_was_repeated_is_retried() -> None:
    assert list(judge("", failed=False, code="SlowDown", calls=2).outcomes.values()) == ["retried"]
    # AWS's libraries do not repeat a call after this error: the second call is for another resource.
    assert list(judge("", failed=False, calls=2).outcomes.values()) == ["accepted"]


def judge_two(code: str, *calls: str) -> Coverage:
    """Return the coverage after a run that failed because of CreateSubnet; CreateVpc had met an error before."""
    injection, coverage = Injection({VPC: code, SUBNET: "Blocked"}.__getitem__), Coverage(SITES)
    call(injection, *calls)
    coverage.judge("up", injection, "subnet: Blocked", failed=True)
    assert coverage.problems == []
    return coverage


def test_of_two_errors_the_command_names_the_one_that_ended_it() -> None:
    explained = {Pair("up", SUBNET, "Blocked"): "explained"}
    retried = {Pair("up", VPC, "RequestLimitExceeded"): "retried"}
    assert judge_two("RequestLimitExceeded", "CreateVpc", "CreateVpc", "CreateSubnet").pending == explained | retried
    # Whether the command did without it or hides it is open.
    hidden = judge_two("AccessDenied", "CreateVpc", "CreateVpc", "CreateSubnet")
    assert hidden.pending == explained
    assert hidden.is_open(Pair("up", VPC, "AccessDenied"))
    assert not hidden.is_open(Pair("up", SUBNET, "Blocked"))
    assert judge_two("AccessDenied", "CreateVpc", "CreateSubnet").pending == explained


def test_a_call_that_the_command_did_without_is_accepted() -> None:
    assert list(judge("", failed=False).outcomes.values()) == ["accepted"]


def test_where_it_has_to_be_named_a_silent_success_is_a_problem() -> None:
    injection, coverage = Injection(lambda _site: "AccessDenied"), Coverage(SITES)
    call(injection, "CreateVpc")
    coverage.judge("check", injection, "all is well", failed=False, exceptions=Exceptions(quiet=()))
    assert "the command succeeded without naming it" in coverage.problems[0]
    assert coverage.pending == {}
    coverage.problems.clear()
    text = "VPCs could not be checked (AccessDenied)"
    coverage.judge("check", injection, text, failed=False, exceptions=Exceptions(quiet=()))
    coverage.judge("check", injection, "all is well", failed=False, exceptions=Exceptions(quiet=(VPC,)))
    assert coverage.problems == []


def test_an_error_that_cannot_have_ended_the_command_is_accepted() -> None:
    injection, coverage = Injection({VPC: "AccessDenied", SUBNET: "Blocked"}.__getitem__), Coverage(SITES)
    call(injection, "CreateVpc", "CreateSubnet")
    coverage.judge("up", injection, "subnet: Blocked", failed=True, exceptions=Exceptions(optional=(VPC,)))
    assert list(coverage.pending.values()) == ["accepted", "explained"]


def test_pairs_are_counted_and_calls_that_the_list_lacks_are_named() -> None:
    coverage = judge("AccessDenied", failed=True)
    assert coverage.count("up", ("AccessDenied", "Blocked")) == CommandCoverage(
        "up", calls=2, pairs=4, now=1, ever=1, classes=4, classes_ever=1
    )
    assert list(coverage.render(("AccessDenied", "Blocked"))) == [
        "up: ec2 CreateSubnet: nothing; 2 not covered",
        "up: ec2 CreateVpc: 1 explained; 1 not covered",
    ]
    coverage.trace("up", ["ec2 CreateRoute"])
    # Calls of commands that were not chosen are not counted.
    coverage.trace("teardown", ["ec2 DeleteRoute"])
    assert coverage.unlisted == [("up", "ec2 CreateRoute")]


def test_a_pair_counts_as_soon_as_what_follows_has_succeeded(tmp_path: Path) -> None:
    record = Record(tmp_path / "record")
    injection, coverage = Injection(lambda _site: "AccessDenied"), Coverage(SITES, record)
    call(injection, "CreateVpc")
    coverage.judge("up", injection, "AccessDenied", failed=True)
    assert (coverage.count("up", ("AccessDenied",)).ever, record.read()) == (0, {})
    coverage.confirm()
    assert coverage.count("up", ("AccessDenied",)).ever == 1
    assert record.read() == {Pair("up", VPC, "AccessDenied"): "explained"}


def test_codes_that_are_handled_alike_are_one_class() -> None:
    counts = judge("VolumeLimitExceeded", failed=True, code="VolumeLimitExceeded").count(
        "up", ("LimitExceeded", "VolumeLimitExceeded", "AccessDenied")
    )
    assert (counts.pairs, counts.ever, counts.classes, counts.classes_ever) == (6, 1, 4, 1)


def test_earlier_rehearsals_count_and_are_not_repeated(tmp_path: Path) -> None:
    record = Record(tmp_path / "record")
    record.add({Pair("up", VPC, "AccessDenied"): "explained", Pair("old", "ec2 Gone", "AccessDenied"): "explained"})
    coverage = Coverage(SITES, record)
    assert coverage.count("up", ("AccessDenied",)) == CommandCoverage(
        "up", calls=2, pairs=2, now=0, ever=1, classes=2, classes_ever=1
    )
    assert coverage.list_open("up", ("AccessDenied",)) == [Pair("up", SUBNET, "AccessDenied")]
    assert list(coverage.render(("AccessDenied",))) == [
        "up: ec2 CreateSubnet: nothing; 1 not covered",
        "up: ec2 CreateVpc: 1 explained; 0 not covered",
    ]


def test_a_pair_with_a_problem_is_not_tried_again_and_not_covered() -> None:
    coverage = judge("something is wrong", failed=True)
    assert coverage.list_open("up", ("AccessDenied",)) == [Pair("up", SUBNET, "AccessDenied")]
    assert coverage.count("up", ("AccessDenied",)).ever == 0


def test_half_of_the_sites_meet_an_error_and_any_two_are_apart_in_some_run() -> None:
    missing = {f"s{number}": tuple("ABCDEFGHIJKL") for number in range(12)}
    runs = [set(spread_codes(missing, number)) for number in range(8)]
    assert all(0 < len(run) < len(missing) for run in runs)
    for pair in combinations(missing, 2):
        assert any(len(run & set(pair)) == 1 for run in runs)


def test_a_site_meets_what_it_has_not_met_yet_and_neighbours_meet_different_codes() -> None:
    assert spread_codes({"s0": ("A", "B"), "s1": (), "s2": ("B",), "s3": ("A", "B")}, 3) == {"s2": "B", "s3": "A"}
    assert spread_codes({"s0": (), "s1": (), "s2": ("B",), "s3": ("B",)}, 3) == {"s2": "B"}
    assert spread_codes({"s0": (), "s1": ()}, 0) == {}


def test_calls_meet_different_errors_that_pass_and_a_kind_of_call_only_one() -> None:
    missing = {"s0": ("A", "B"), "s0 #2": ("A", "B"), "s1": ("A", "B"), "s2": ("B",), "s3": ("C",)}
    assert spread_transient_codes(missing) == {"s0": "A", "s1": "B", "s3": "C"}
    assert spread_transient_codes({"s0": (), "s0 #2": ("A",), "s1": ()}) == {"s0 #2": "A"}


def test_a_barrage_fails_every_call_until_all_open_codes_were_met() -> None:
    barrage = Barrage({"ec2 X": ("A", "B"), "ec2 Y": ("B",), "ec2 Z": ()}.__getitem__)
    assert [barrage("ec2", action, {}) for action in ("X", "X", "X", "Y", "Z")] == ["A", "B", "", "B", ""]
    assert barrage.injected == [("ec2 X", "A"), ("ec2 X", "B"), ("ec2 Y", "B")]
    assert set(barrage.remaining) == {"ec2 X", "ec2 Y", "ec2 Z"}
