"""Every error code of AWS at every call of every command: retried, done without, or named with a fix; nothing is left.

Commands without the engine meet a code of each class at every call every night, and all codes in 17 nights. Steps of
Pulumi, which make nearly all calls of the commands with the engine, are repeated until they have met all codes, every
night. What the engine does after an error is shown in cycles: two every night, all of them in 25 nights. `muster
rehearse --stack aws-full --errors all` does the same in one go and prints the counts. Until a cycle of permanent errors
has passed, test_errors_everywhere.py covers `up` and `teardown` of the g6 pair. That each code has its fix is shown in
test_refusals.py, and that Slurm's launcher handles each code at each of its calls in launcher/test_error_matrix.py.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from infra.home import Home
from infra.targets.aws.rehearse.errors.classes import group_codes
from infra.targets.aws.rehearse.errors.coverage import Coverage, restrict_sites
from infra.targets.aws.rehearse.errors.engine_commands import COMMANDS, TEARDOWN, UP, Cycle, plan_cycles
from infra.targets.aws.rehearse.errors.failing_cluster import FailingCluster, open_failing_cluster
from infra.targets.aws.rehearse.errors.operations import Notes
from infra.targets.aws.rehearse.errors.pair import Pair
from infra.targets.aws.rehearse.errors.rehearse_errors import OPERATION_NAMES, cover_engine, cover_operations
from infra.targets.aws.rehearse.errors.share import ALL_CODES, Share
from infra.targets.aws.rehearse.errors.step_commands import cover_steps, is_step_open
from tests.seeds import read_night

STACK = "aws-full"
NIGHTS = 25
"""Nights in which every cycle runs once."""
CYCLES = plan_cycles(ALL_CODES)[read_night() % NIGHTS :: NIGHTS]
CODES = tuple(codes[read_night() % len(codes)] for codes in group_codes(ALL_CODES))
"""A code of each class, another one every night; the largest class has 17."""


@dataclass
class Console(Notes):
    """Prints progress, which pytest shows if the test fails."""

    lines: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        print(text)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FailingCluster]:
    here = Home.of(os.environ)
    folder = tmp_path_factory.mktemp("errors")
    home = Home(repo=here.repo, root=folder, cache=here.cache, stacks=here.stacks)
    with open_failing_cluster(home.stack(STACK)) as cluster:
        yield cluster


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_errors_at_every_call_of_other_commands(cluster: FailingCluster) -> None:
    # The commands that create and remove the cluster are traced too.
    coverage = Coverage(restrict_sites(*OPERATION_NAMES, UP, TEARDOWN))
    cover_operations(cluster, coverage, Share(CODES), Console())
    print(*coverage.render(CODES), sep="\n")
    assert coverage.problems == []
    assert coverage.unlisted == [], "add these calls to call_sites.txt"
    pairs = {Pair(name, site, code) for name in OPERATION_NAMES for site in coverage.sites[name] for code in CODES}
    assert sorted(pairs - set(coverage.outcomes)) == []


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_every_error_at_each_call_of_the_steps_of_the_engine(cluster: FailingCluster) -> None:
    """What is made outside of steps is covered by the cycles, and as an operation by the test of other commands."""
    coverage = Coverage(restrict_sites(*COMMANDS))
    cover_steps(cluster, coverage, Share(ALL_CODES), Console())
    print(*coverage.render(ALL_CODES), sep="\n")
    assert coverage.problems == []
    assert not is_step_open(coverage, Share(ALL_CODES))
    for name in COMMANDS:
        met = {pair.site for pair in coverage.outcomes if pair.command == name}
        assert [pair for pair in coverage.list_open(name, ALL_CODES) if pair.site in met] == []


@pytest.mark.nightly
# On two cores with other work, the 21 runs of `up` alone took 37 minutes.
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("cycle", CYCLES, ids=str)
def test_an_error_at_each_call_of_the_engine(cluster: FailingCluster, cycle: Cycle) -> None:
    """In all cycles together, each call meets every code."""
    coverage = Coverage(restrict_sites(*COMMANDS))
    engine = cover_engine(cluster, coverage, Share(cycle.codes), cycle, Console())
    print(*coverage.render(cycle.codes), sep="\n")
    assert coverage.problems == []
    assert coverage.unlisted == [], "add these calls to call_sites.txt"
    unmet = {(name, site) for name in COMMANDS for site in set(coverage.sites[name]) - engine.met[name]}
    assert unmet == set()
