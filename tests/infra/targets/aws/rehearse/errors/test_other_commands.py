"""Other commands than those of the engine: the cluster that they need is created and removed without errors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import pytest

from infra.engine.stop import Stop
from infra.targets.aws.rehearse.errors.coverage import Coverage, restrict_sites
from infra.targets.aws.rehearse.errors.engine_commands import TEARDOWN, UP
from infra.targets.aws.rehearse.errors.failing_cluster import FailingCluster
from infra.targets.aws.rehearse.errors.injection import Injection
from infra.targets.aws.rehearse.errors.operation_runs import SWEEP
from infra.targets.aws.rehearse.errors.operations import Notes
from infra.targets.aws.rehearse.errors.rehearse_errors import OPERATION_NAMES, cover_operations
from infra.targets.aws.rehearse.errors.share import Share


@dataclass
class Cluster:
    """Commands that make some calls each and fail if one of them is refused."""

    calls: dict[str, Sequence[str]]
    code: int = 0
    runs: list[str] = field(default_factory=list)

    def run(self, command: str, *_options: str, errors: Injection) -> tuple[int, str]:
        self.runs.append(command)
        calls = (call.partition(" ") for call in self.calls[command])
        refused = [errors(service, action, {}) for service, _, action in calls]
        return self.code or int(any(refused)), "refused"

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def require_nothing_left(self, _when: str) -> None:
        pass


def list_calls(command: str) -> list[str]:
    """Return listed sites whose names are those of their calls: they have no path."""
    return [site for site in restrict_sites(command)[command] if "/" not in site]


def cover(cluster: Cluster) -> Coverage:
    """Run the commands, without codes that others could meet."""
    coverage = Coverage(restrict_sites(*OPERATION_NAMES, UP, TEARDOWN))
    cover_operations(cast(FailingCluster, cluster), coverage, Share(()), Notes())
    return coverage


def test_calls_that_create_and_remove_the_cluster_are_listed() -> None:
    cluster = Cluster({name: list_calls(name) for name in (UP, TEARDOWN)})
    coverage = cover(cluster)
    assert cluster.runs == [UP, TEARDOWN]
    assert len(coverage.traced) == sum(map(len, cluster.calls.values()))
    assert coverage.unlisted == []


def test_a_call_that_the_list_does_not_have_is_reported() -> None:
    coverage = cover(Cluster({UP: ["ec2 LaunchRockets"], TEARDOWN: []}))
    assert coverage.unlisted == [(UP, "ec2 LaunchRockets")]


@pytest.mark.parametrize(
    ("chosen", "runs"), [(("cost", "state"), []), (("cost", "status"), [UP, TEARDOWN]), ((SWEEP,), [UP, TEARDOWN])]
)
def test_a_cluster_is_created_only_for_commands_that_need_one(chosen: Sequence[str], runs: Sequence[str]) -> None:
    cluster = Cluster({UP: [], TEARDOWN: []})
    # No time is left for errors, but all are still to be injected.
    share = Share(("SlowDown",), ends_s=0.0)
    cover_operations(cast(FailingCluster, cluster), Coverage(restrict_sites(*chosen)), share, Notes())
    assert cluster.runs == runs


def test_a_cluster_that_cannot_be_created_without_errors_stops_the_rehearsal() -> None:
    with pytest.raises(Stop, match="`muster up` failed without errors of AWS"):
        cover(Cluster({UP: []}, code=1))
