"""Cycles of `up`, a change of sizes and `teardown`, with commands that call AWS and do nothing else."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from infra.engine.stop import FAILED, Stop
from infra.targets.aws.rehearse.errors.classes import group_codes
from infra.targets.aws.rehearse.errors.coverage import Coverage
from infra.targets.aws.rehearse.errors.engine_commands import Cycle, plan_cycles
from infra.targets.aws.rehearse.errors.failing_cluster import FailingCluster
from infra.targets.aws.rehearse.errors.injection import Injection
from infra.targets.aws.rehearse.errors.operations import Notes
from infra.targets.aws.rehearse.errors.pair import Pair
from infra.targets.aws.rehearse.errors.rehearse_errors import cover_engine
from infra.targets.aws.rehearse.errors.share import ALL_CODES, FATAL, TRANSIENT, Share

CALLS = {"up": ("CreateVpc", "CreateSubnet"), "teardown": ("DeleteSubnet", "DeleteVpc")}
SITES = {
    "up": ("ec2 CreateSubnet", "ec2 CreateVpc"),
    "resize": ("ec2 CreateSubnet", "ec2 CreateVpc"),
    "teardown": ("ec2 DeleteSubnet", "ec2 DeleteVpc"),
}
PERMANENT = Cycle(("AccessDenied", "Blocked"), 0)


@dataclass
class Commands:
    """Commands of which each makes its calls in order, repeats one that passes, and ends with any other error."""

    retries: bool = True
    names_errors: bool = True
    left: Sequence[str] = ()
    """What `teardown` leaves."""
    calls: Mapping[str, Sequence[str]] = field(default_factory=lambda: CALLS)
    goes_on: bool = False
    """Whether `teardown` succeeds in spite of errors, which it names."""
    more_calls: Sequence[str] = ()
    """Calls of `up` after a change of sizes, besides the others."""
    runs: list[str] = field(default_factory=list)

    def run(self, command: str, *_options: str, errors: Injection | None = None) -> tuple[int, str]:
        self.runs.append(command)
        more = self.more_calls if command == "up" and "+1" in self.runs else ()
        named = ""
        for action in (*self.calls[command], *more):
            code = errors("ec2", action, {}) if errors else ""
            if code in TRANSIENT and self.retries and errors:
                code = errors("ec2", action, {})
            if code and self.goes_on and command == "teardown":
                named += f"{action}: {code}; "
            elif code:
                return 1, f"{action}: {code if self.names_errors else 'no'}; run `muster {command}` again"
        return 0, f"{named}nothing to change"

    def add_nodes(self, number: int) -> None:
        self.runs.append(f"{number:+d}")

    def require_nothing_left(self, when: str) -> None:
        if self.left:
            raise Stop(f"{when}: the account has {', '.join(self.left)}", code=FAILED)


def cover(commands: Commands, cycle: Cycle = PERMANENT, share: Share | None = None) -> Coverage:
    coverage = Coverage(SITES)
    cover_engine(cast(FailingCluster, commands), coverage, share or Share(cycle.codes), cycle, Notes())
    return coverage


@pytest.mark.nightly
def test_in_all_cycles_each_site_meets_each_code_once() -> None:
    cycles = plan_cycles(ALL_CODES)
    for position in range(200):
        assert sorted(cycle.order(position)[0] for cycle in cycles) == sorted(ALL_CODES)
        assert all(sorted(cycle.order(position)) == sorted(cycle.codes) for cycle in cycles)
    assert {cycle.codes for cycle in cycles if cycle.is_transient} == {TRANSIENT}
    assert {cycle.codes for cycle in cycles if not cycle.is_transient} == {FATAL}


def test_in_the_first_cycles_each_site_meets_a_code_of_each_class() -> None:
    classes = group_codes(FATAL)
    first = [cycle for cycle in plan_cycles(ALL_CODES) if not cycle.is_transient][: len(classes)]
    for position in range(200):
        met = {cycle.order(position)[0] for cycle in first}
        assert [len(met.intersection(names)) for names in classes] == [1] * len(classes)


def test_a_command_is_repeated_until_every_call_has_met_an_error_and_it_succeeds() -> None:
    commands = Commands()
    coverage = cover(commands)
    # After the first failed `up`, what it has created is removed.
    ups = ["up", "teardown", "up", "up", "up"]
    assert commands.runs == [*ups, "+1", "up", "up", "up", "up", "teardown", "teardown", "teardown"]
    assert coverage.problems == []
    assert set(coverage.outcomes.values()) == {"explained"}
    assert {(pair.command, pair.site) for pair in coverage.outcomes} == {(c, site) for c in SITES for site in SITES[c]}


def test_a_teardown_that_goes_on_after_errors_is_repeated_until_every_call_has_met_one() -> None:
    """There are more calls than different errors, and it succeeds before all of them have met one."""
    calls = tuple(f"Delete{number}" for number in range(5))
    commands = Commands(calls=CALLS | {"teardown": calls}, goes_on=True)
    coverage = Coverage(SITES | {"teardown": tuple(f"ec2 {call}" for call in calls)})
    engine = cover_engine(cast(FailingCluster, commands), coverage, Share(PERMANENT.codes), PERMANENT, Notes())
    assert coverage.problems == []
    assert engine.met["teardown"] == set(coverage.sites["teardown"])
    assert commands.runs[-5:] == ["teardown", "up", "teardown", "up", "teardown"]


def test_a_cycle_knows_which_calls_have_met_an_error() -> None:
    coverage = Coverage(SITES)
    engine = cover_engine(cast(FailingCluster, Commands()), coverage, Share(PERMANENT.codes), PERMANENT, Notes())
    assert engine.met == {name: set(sites) for name, sites in SITES.items()}
    assert coverage.unlisted == []


def test_a_call_after_a_change_of_sizes_that_is_not_listed_is_reported() -> None:
    assert cover(Commands(more_calls=("RunInstances",))).unlisted == [("resize", "ec2 RunInstances")]


def test_the_next_cycle_covers_what_is_missing() -> None:
    coverage = Coverage(SITES)
    for cycle in plan_cycles(PERMANENT.codes):
        cover_engine(cast(FailingCluster, Commands()), coverage, Share(PERMANENT.codes), cycle, Notes())
    pairs = {Pair(c, site, code) for c in SITES for site in SITES[c] for code in PERMANENT.codes}
    assert set(coverage.outcomes) == pairs


def test_errors_that_pass_are_retried_in_one_run() -> None:
    commands = Commands()
    coverage = cover(commands, Cycle(("SlowDown", "Throttling"), 0))
    assert commands.runs == ["up", "up", "+1", "up", "up", "teardown"]
    assert coverage.problems == []
    assert set(coverage.outcomes.values()) == {"retried"}


def test_an_error_that_passes_and_ends_a_command_is_a_problem_and_not_covered() -> None:
    coverage = cover(Commands(retries=False), Cycle(("SlowDown", "Throttling"), 0))
    assert "up: it failed, although AWS's errors pass (transient errors, cycle 1 of 2)" in coverage.problems[0]
    assert coverage.outcomes == {}


def test_a_failure_that_does_not_name_its_error_is_a_problem() -> None:
    coverage = cover(Commands(names_errors=False))
    assert "up: ec2 CreateVpc: Blocked: the command failed without naming it" in coverage.problems[0]
    assert coverage.outcomes == {}


def test_only_listed_calls_meet_errors_so_that_a_command_ends() -> None:
    commands = Commands(more_calls=[f"Create{number}" for number in range(20)])
    coverage = cover(commands)
    assert commands.runs.count("up") == 8, "each of two listed calls fails once, twice, and two runs change nothing"
    assert coverage.problems == []


def test_what_is_left_is_a_problem_and_the_errors_before_it_do_not_count() -> None:
    coverage = cover(Commands(left=("vpc-1",)))
    assert coverage.problems == [
        "permanent errors, cycle 1 of 2: after `muster teardown` of a failed `up` with permanent errors, "
        "cycle 1 of 2: the account has vpc-1"
    ]
    assert coverage.outcomes == coverage.pending == {}
    # They are not repeated in this rehearsal, but in the next one.
    assert not coverage.is_open(Pair("up", "ec2 CreateVpc", "Blocked"))


def test_what_has_begun_when_the_time_is_over_ends_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first error is injected in time; it counts because the next `up` succeeds and `teardown` leaves nothing."""
    commands, now = Commands(), iter([0.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(now, 100.0))
    coverage = cover(commands, share=Share(PERMANENT.codes, ends_s=50.0))
    assert commands.runs == ["up", "teardown", "up", "up", "teardown"]
    assert coverage.outcomes == {Pair("up", "ec2 CreateVpc", "Blocked"): "explained"}
