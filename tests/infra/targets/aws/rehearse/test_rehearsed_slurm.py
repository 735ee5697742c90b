"""Waiting for a job of a rehearsal: a job that was requeued has not ended, whatever accounting says."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from infra.engine.stop import Stop
from infra.targets.aws.rehearse import rehearsed_slurm
from infra.targets.aws.rehearse.delays import Clock
from infra.targets.aws.rehearse.instances import Instances
from infra.targets.aws.rehearse.rehearsed_slurm import RehearsedSlurm
from infra.targets.aws.rehearse.timeline import Timeline


@pytest.fixture
def timeline(monkeypatch: pytest.MonkeyPatch) -> Timeline:
    monkeypatch.setattr(rehearsed_slurm, "_POLL_S", 0.0)
    return Timeline()


def make_slurm(
    timeline: Timeline, monkeypatch: pytest.MonkeyPatch, *, queue: list[str], accounting: str
) -> RehearsedSlurm:
    """Return Slurm whose queue shows these states one after the other, and then no job."""
    states: Iterator[str] = iter(queue)

    def run(_: RehearsedSlurm, script: str) -> str:
        return f"{next(states, '')}\n{accounting}" if "squeue" in script else "gpu-1"

    monkeypatch.setattr(RehearsedSlurm, "run", run)
    instances = cast(Instances, SimpleNamespace(clock=Clock(1, 1.0), timeline=timeline))
    return RehearsedSlurm("alice", instances)


def test_a_requeued_job_is_waited_for(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = ["RUNNING", "COMPLETING", "PENDING", "RUNNING"]
    slurm = make_slurm(timeline, monkeypatch, queue=queue, accounting="COMPLETED|0:0|gpu-1\n")
    assert slurm.wait_for_end("1") == "gpu-1"
    assert [event.what for event in timeline.events] == ["running", "completing", "pending", "running", "completed"]


def test_a_job_that_failed_is_an_error(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = make_slurm(timeline, monkeypatch, queue=["RUNNING"], accounting="NODE_FAIL|1:0|gpu-1\n")
    with pytest.raises(Stop, match=r"job 1 did not complete: NODE_FAIL\|1:0\|gpu-1"):
        slurm.wait_for_end("1")
