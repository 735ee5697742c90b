"""An error that passes and one that stays at every call of the operations that need no cluster, without the engine."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from infra.home import Home
from infra.targets.aws.rehearse.errors.call_sites import read_sites
from infra.targets.aws.rehearse.errors.coverage import Coverage
from infra.targets.aws.rehearse.errors.failing_cluster import open_failing_cluster, use_environment
from infra.targets.aws.rehearse.errors.operation_runs import cover_operation
from infra.targets.aws.rehearse.errors.operations import (
    OPERATIONS,
    Operation,
    Subject,
    end_spares,
    launch_spare,
)
from infra.targets.aws.rehearse.errors.pair import Pair
from infra.targets.aws.rehearse.errors.share import TRANSIENT, Share

WITHOUT_CLUSTER = ("check (new)", "cost", "image refresh")
CODES = (TRANSIENT[0], "AccessDenied")
MACHINES = "ec2 DescribeInstances"


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    here = Home.of(os.environ)
    home = Home(repo=here.repo, root=tmp_path_factory.mktemp("errors"), cache=here.cache, stacks=here.stacks)
    with open_failing_cluster(home.stack("aws-full")) as cluster, use_environment(cluster):
        yield Subject(cluster)


def cover(subject: Subject, operation: Operation) -> Coverage:
    coverage = Coverage({operation.name: read_sites()[operation.name]})
    cover_operation(subject, operation, coverage, Share(CODES), lambda _text: None)
    return coverage


@pytest.mark.nightly_cases("check (new)")
@pytest.mark.parametrize(
    "operation", [operation for operation in OPERATIONS if operation.name in WITHOUT_CLUSTER], ids=lambda o: o.name
)
def test_every_call_meets_both_errors_and_both_are_handled(subject: Subject, operation: Operation) -> None:
    coverage = cover(subject, operation)
    print(*coverage.render(CODES), sep="\n")
    assert coverage.problems == []
    assert coverage.unlisted == [], "add these calls to call_sites.txt"
    sites = coverage.sites[operation.name]
    assert set(coverage.outcomes) == {Pair(operation.name, site, code) for site in sites for code in CODES}


def test_a_traceback_is_a_problem_and_its_pair_does_not_count(subject: Subject) -> None:
    coverage = cover(subject, Operation("logs", list_machines))
    (problem,) = coverage.problems
    assert "a traceback: ClientError" in problem
    # AWS's library repeats the call after the other error.
    assert coverage.outcomes == {Pair("logs", MACHINES, TRANSIENT[0]): "retried"}


def test_what_a_run_leaves_for_good_is_a_problem(subject: Subject) -> None:
    coverage = cover(subject, Operation("logs", launch_machine))
    assert "is left and not named" in coverage.problems[0]
    assert "left for good" in coverage.problems[1]
    assert coverage.outcomes == {}
    end_spares(subject)


def test_machines_of_earlier_runs_are_forgotten(subject: Subject) -> None:
    machines = subject.cluster.client("ec2").describe_instances
    subject.cluster.forget_ended_machines()
    launch_spare(subject)
    subject.cluster.forget_ended_machines()
    assert len(machines()["Reservations"]) == 1
    end_spares(subject)
    subject.cluster.forget_ended_machines()
    assert machines()["Reservations"] == []


def list_machines(subject: Subject) -> str:
    """List machines, as code would that has no thought for errors."""
    subject.cluster.client("ec2").describe_instances()
    return ""


def launch_machine(subject: Subject) -> str:
    launch_spare(subject)
    return ""
