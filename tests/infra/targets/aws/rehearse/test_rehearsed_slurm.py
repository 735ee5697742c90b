"""Waiting for a job of a rehearsal: a job that was requeued has not ended, whatever accounting says."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
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


def test_a_step_is_waited_for_after_the_batch_script_began(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = make_slurm(timeline, monkeypatch, queue=[], accounting="")
    outputs = iter(["", "1.extern\n1.batch\n", "1.extern\n1.batch\n1.0\n"])
    monkeypatch.setattr(RehearsedSlurm, "run", lambda _self, _script: next(outputs))
    slurm.wait_for_step("1")
    assert next(outputs, None) is None


def test_a_job_without_a_step_is_an_error(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = make_slurm(timeline, monkeypatch, queue=[], accounting="")
    monkeypatch.setattr(rehearsed_slurm, "limit_job_s", lambda _speed: 0.0)
    monkeypatch.setattr(RehearsedSlurm, "run", lambda _self, _script: "")
    with pytest.raises(Stop, match="job 1 has no step after 0 s, and is not in the queue"):
        slurm.wait_for_step("1")


def test_the_queue_is_saved_when_the_saved_state_has_a_later_change(
    timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = make_slurm(timeline, monkeypatch, queue=[], accounting="")
    scripts: list[str] = []

    def run(_: RehearsedSlurm, script: str) -> str:
        scripts.append(script)
        return "saved\n" if len(scripts) == 3 else ""

    monkeypatch.setattr(RehearsedSlurm, "run", run)
    slurm.wait_until_saved("1")
    update, *looks = scripts
    mark = update.removeprefix("scontrol update jobid=1 comment=")
    assert mark != update
    assert looks == [f"grep -qsa {mark} /var/lib/slurm/slurmctld/job_state && echo saved || true"] * 2


def test_a_queue_that_is_never_saved_is_an_error(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = make_slurm(timeline, monkeypatch, queue=[], accounting="")
    monkeypatch.setattr(RehearsedSlurm, "run", lambda _self, _script: "")
    monkeypatch.setattr(rehearsed_slurm, "_SAVED_S", 0.0)
    with pytest.raises(Stop, match="slurmctld has not saved its queue within 0 s"):
        slurm.wait_until_saved("1")


def test_the_age_of_the_output_is_read_from_its_file(
    timeline: Timeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A job has run when it printed last, which is earlier than the moment at which its end is noticed."""
    output = tmp_path / "slurm-1.out"
    output.touch()
    written_at = time.time() - 2.5
    os.utime(output, (written_at, written_at))
    slurm = make_slurm(timeline, monkeypatch, queue=[], accounting="")

    def run(_: RehearsedSlurm, script: str) -> str:
        return subprocess.check_output(["sh", "-ec", script.replace("~alice", str(tmp_path))], text=True)

    monkeypatch.setattr(RehearsedSlurm, "run", run)
    assert 2.5 <= slurm.read_output_age("1") < 20
