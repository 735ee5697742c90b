"""The job queue before a change: no answer never counts as idle, and only nodes that muster drained are resumed."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from docker.errors import APIError, NotFound
from requests import Response

from bootstrap.transport.base import Transport, TransportError
from bootstrap.transport.local import LocalTransport
from infra import guard
from infra.resources.error import ResourceError
from infra.resources.force import FORCE
from infra.resources.job_queue import NoQueue, QueueSigns, SlurmQueue, UnknownQueue, holds_slurm_cluster, judge_queue
from infra.targets.local import queue as local_queue
from slurm.control.jobs import EMPTYING
from tests.harness import REPO

SINFO = "printf 'gpu-1\\ngpu-2\\ngpu-2\\ngpu-10\\n'"
# Like squeue, it lists the jobs that hold one of the nodes, with all nodes of each.
SQUEUE = """echo "squeue $*" >> {log}
case "$*" in
  *"-w "*gpu-2*"%i %N") echo "7 gpu-[2-3]"; echo "8_1 gpu-2" ;;
  *"%u %i") echo bob 7; echo alice 8_1; echo bob 9 ;;
esac"""
# `show hostnames` and `show hostlist` need no slurmctld.
SCONTROL = """echo "$*" >> {log}
case "$*" in
  "show hostnames "*) exec {expand} "$3" ;;
  "show hostlist "*) echo "$3" ;;
esac
for node in $(echo "$4" | tr , ' '); do
  case "$*" in "-o show node "*) ;; *) continue ;; esac
  case "$node" in
    gpu-1) echo "NodeName=gpu-1 Arch=x86 State=IDLE+PLANNED ThreadsPerCore=1 Comment=no DRAIN yet" ;;
    gpu-2) echo "NodeName=gpu-2 State=MIXED+DRAIN ThreadsPerCore=1 Reason=bad disk [root@now]" ;;
    gpu-10) echo "NodeName=gpu-10 State=IDLE+DRAIN ThreadsPerCore=1 Reason=muster: leaving [root@now]" ;;
  esac
done"""
DEAD = "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1"


def fill_in(script: str, log: Path) -> str:
    expand = "import sys; from slurm.hostlist import expand; print(*expand(sys.argv[1]), sep=chr(10))"
    return script.format(log=log, expand=f"env PYTHONPATH={REPO} {sys.executable} -c '{expand}' ")


class Slurm:
    """Fake Slurm commands: scripts in a folder that is first in PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "log"
        self.queue = SlurmQueue(LocalTransport)
        self.command("sinfo", SINFO)
        self.command("squeue", SQUEUE.format(log=self.log))
        self.command("scontrol", fill_in(SCONTROL, self.log))

    def command(self, name: str, script: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.folder / name).chmod(0o755)

    @property
    def updates(self) -> list[str]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.startswith("update")]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Slurm(tmp_path)


def test_jobs_by_node_and_nodes_unknown_to_slurm_have_none(slurm: Slurm) -> None:
    assert slurm.queue.jobs(["login", "gpu-1", "gpu-2"]) == {"gpu-2": ["7", "8_1"]}
    assert slurm.queue.jobs(["login"]) == {}


def test_slurm_is_asked_once_for_all_nodes(slurm: Slurm) -> None:
    """A command for each of a thousand nodes would take longer than the 30 s that a query may."""
    names = [f"gpu-{number}" for number in range(1, 1001)]
    slurm.command("sinfo", "seq -f gpu-%.0f 1 1000")
    assert slurm.queue.jobs(names) == {"gpu-2": ["7", "8_1"], "gpu-3": ["7"]}
    assert sum(line.startswith("squeue") for line in slurm.log.read_text().splitlines()) == 1
    slurm.queue.drain(names)
    assert sum("show node" in line for line in slurm.log.read_text().splitlines()) == 1


def test_a_long_queue_is_cut_off_but_never_looks_empty(slurm: Slurm) -> None:
    slurm.command("squeue", "seq -f '%.0f gpu-1' 100001 110000")
    (jobs,) = slurm.queue.jobs(["gpu-1"]).values()
    assert jobs[:2] == ["100001", "100002"]
    assert 500 < len(jobs) < 2000
    long = ",".join(f"gpu-{number}" for number in range(1, 9001, 2))
    slurm.command("squeue", f"echo 7 {long}; echo 8 gpu-1")
    assert slurm.queue.jobs(["gpu-1"]) == {"gpu-1": ["7"]}


def test_forced_change_requeues_each_job_and_cancels_those_that_cannot_be(slurm: Slurm) -> None:
    slurm.command(
        "squeue", f"test -e {slurm.folder}/asked || {{ touch {slurm.folder}/asked; echo 7; echo 8; echo 7; }}"
    )
    slurm.command("scancel", f'echo "scancel $*" >> {slurm.log}')
    refuse = 'case "$*" in "requeue 8") exit 1 ;; esac'
    slurm.command("scontrol", f"{fill_in(SCONTROL, slurm.log)}\n{refuse}")
    slurm.queue.requeue(["gpu-1", "gpu-2"])
    lines = slurm.log.read_text().splitlines()
    assert sorted(line for line in lines if line.startswith(("requeue", "scancel"))) == [
        "requeue 7", "requeue 8", "scancel 8",
    ]  # fmt: skip


def test_jobs_by_user(slurm: Slurm) -> None:
    assert slurm.queue.jobs_of(["bob", "carol"]) == {"bob": ["7", "9"]}
    slurm.command("squeue", DEAD)
    with pytest.raises(ResourceError, match="controller: the job queue does not answer"):
        slurm.queue.jobs_of(["carol"])


def test_jobs_of_users_in_an_unknown_queue_are_an_error() -> None:
    message = "users: cannot check whether jobs of bob, carol are running: no slurmctld runs on the controller"
    with pytest.raises(ResourceError, match=message):
        UnknownQueue("no slurmctld runs on the controller").jobs_of(["bob", "carol"])


@pytest.mark.parametrize("command", ["sinfo", "squeue"])
def test_unanswered_query_does_not_count_as_idle(slurm: Slurm, command: str) -> None:
    slurm.command(command, DEAD)
    with pytest.raises(
        ResourceError, match="controller: the job queue does not answer: slurm_load_partitions: Unable to"
    ):
        slurm.queue.jobs(["gpu-1"])


@pytest.mark.parametrize("command", ["sinfo", "scontrol"])
def test_unanswered_drain_does_not_count_as_drained(slurm: Slurm, command: str) -> None:
    slurm.command(command, DEAD)
    with pytest.raises(ResourceError, match="the job queue does not answer"):
        slurm.queue.drain(["gpu-1"])


def test_unreachable_controller_does_not_count_as_idle() -> None:
    def connect() -> Transport:
        raise TransportError("controller", "no answer within 30 s")

    with pytest.raises(ResourceError, match=r"the job queue does not answer: no answer within 30 s. Fix: .*FORCE=1"):
        SlurmQueue(connect).jobs(["gpu-1"])


def test_nodes_drained_by_an_admin_keep_their_reason_and_are_not_resumed(slurm: Slurm) -> None:
    assert slurm.queue.drain(["gpu-1", "gpu-2", "gpu-10", "login"]) == ("gpu-1", "gpu-10")
    # gpu-10 was leaving already, and gets the time of this change.
    assert slurm.updates == ["update nodename=gpu-1,gpu-10 state=drain reason=muster: leaving"]
    slurm.queue.resume(["gpu-1", "gpu-10"])
    assert slurm.updates[1:] == ["update nodename=gpu-1,gpu-10 state=resume"]


def test_a_change_takes_over_nodes_that_a_refresh_has_emptied(slurm: Slurm) -> None:
    """Only nodes that are leaving are returned to service by the sweep."""
    emptied = f"IDLE+DRAIN+POWERED_DOWN ThreadsPerCore=1 Reason={EMPTYING} [root@now]"
    script = SCONTROL.replace("IDLE+PLANNED ThreadsPerCore=1 Comment=no DRAIN yet", emptied)
    slurm.command("scontrol", fill_in(script, slurm.log))
    assert slurm.queue.drain(["gpu-1", "gpu-2"], EMPTYING) == ("gpu-1",)
    assert slurm.updates == []
    assert slurm.queue.drain(["gpu-1", "gpu-2"]) == ("gpu-1",)
    assert slurm.updates == ["update nodename=gpu-1 state=drain reason=muster: leaving"]


def test_nodes_are_set_aside_with_their_own_reasons_unless_drained_already(slurm: Slurm) -> None:
    reasons = {
        "gpu-1": "health: fabric: it's slow; $x",
        "gpu-2": "health: fabric: slow",
        "login": "health: fabric: slow",
    }
    assert slurm.queue.set_aside(reasons) == ("gpu-1",)
    assert slurm.updates == ["update nodename=gpu-1 state=drain reason=health: fabric: it's slow; $x"]
    with pytest.raises(ResourceError, match="gpu-1, gpu-2, login cannot be drained: the controller is gone"):
        UnknownQueue("the controller is gone").set_aside(reasons)


def test_resume_without_drained_nodes_does_nothing(slurm: Slurm) -> None:
    assert slurm.queue.drain(["gpu-2"]) == ()
    slurm.queue.resume(())
    assert slurm.updates == []


class FakeQueue:
    """A queue in which gpu-2 was drained by somebody else before."""

    def __init__(self, jobs: dict[str, list[str]]) -> None:
        self._jobs, self.calls = jobs, list[tuple[str, tuple[str, ...]]]()

    def jobs(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        self.calls.append(("jobs", tuple(nodes)))
        return self._jobs

    def jobs_of(self, users: Sequence[str]) -> dict[str, list[str]]:
        self.calls.append(("jobs_of", tuple(users)))
        return {}

    def drain(self, nodes: Sequence[str]) -> tuple[str, ...]:
        self.calls.append(("drain", tuple(nodes)))
        return tuple(node for node in nodes if node != "gpu-2")

    def requeue(self, nodes: Sequence[str]) -> None:
        self.calls.append(("requeue", tuple(nodes)))

    def resume(self, nodes: Sequence[str]) -> None:
        self.calls.append(("resume", tuple(nodes)))


BOTH = ("gpu-1", "gpu-2")


def test_job_started_after_the_check_stops_the_change_and_resumes_our_nodes() -> None:
    queue = FakeQueue({"gpu-1": ["7"]})
    with pytest.raises(ResourceError, match=r"jobs have started on nodes that would be removed \(gpu-1: 7\)"):
        guard._drain(queue, BOTH)
    assert queue.calls == [("drain", BOTH), ("jobs", BOTH), ("resume", ("gpu-1",))]


def test_failed_resume_does_not_hide_the_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    class FailingResume(FakeQueue):
        def resume(self, nodes: Sequence[str]) -> None:
            raise ResourceError("controller", f"Invalid node state specified for {nodes[0]}", "look")

    with pytest.raises(ResourceError, match="jobs have started on nodes that would be removed"):
        guard._drain(FailingResume({"gpu-1": ["7"]}), BOTH)
    assert "warning: gpu-1 may still be drained: controller: Invalid node state" in capsys.readouterr().err


def test_idle_nodes_stay_drained() -> None:
    queue = FakeQueue({})
    guard._drain(queue, BOTH)
    assert queue.calls == [("drain", BOTH), ("jobs", BOTH)]


def test_force_requeues_jobs_after_draining(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCE, "1")
    queue = FakeQueue({"gpu-1": ["7"]})
    guard._drain(queue, BOTH)
    assert queue.calls == [("drain", BOTH), ("requeue", BOTH)]


def test_force_continues_without_an_answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    queue = UnknownQueue("no slurmctld runs on the controller")
    with pytest.raises(ResourceError, match="gpu-1, gpu-2 cannot be drained: no slurmctld runs on the controller"):
        guard._drain(queue, BOTH)
    monkeypatch.setenv(FORCE, "1")
    guard._drain(queue, BOTH)
    assert "warning: groups: gpu-1, gpu-2 cannot be drained" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("signs", "expected"),
    [
        (QueueSigns(controller=True, daemon=True, compute=True, bootstrapped=True), "ask"),
        (QueueSigns(controller=True, daemon=True, compute=True, bootstrapped=False), "ask"),
        # slurmctld died or its container stopped: jobs that it started may still run
        (QueueSigns(controller=True, daemon=False, compute=True, bootstrapped=True), "unknown"),
        # the first `up` stopped before it installed Slurm
        (QueueSigns(controller=True, daemon=False, compute=True, bootstrapped=False), "idle"),
        # the controller is gone, and its queue with it
        (QueueSigns(controller=False, daemon=False, compute=True, bootstrapped=True), "idle"),
        # there is no node that could run a job
        (QueueSigns(controller=True, daemon=False, compute=False, bootstrapped=True), "idle"),
        (QueueSigns(controller=False, daemon=False, compute=False, bootstrapped=False), "idle"),
    ],
)
def test_nodes_count_as_idle_without_a_query_only_if_no_job_is_possible(signs: QueueSigns, expected: str) -> None:
    assert judge_queue(signs) == expected


def test_no_queue_drains_nothing() -> None:
    assert (NoQueue().jobs(BOTH), NoQueue().jobs_of(["bob"]), NoQueue().drain(BOTH)) == ({}, {}, ())
    assert NoQueue().set_aside({"gpu-1": "slow"}) == ()


def test_state_shows_whether_slurm_was_installed(tmp_path: Path) -> None:
    def state(*types: str) -> Path:
        checkpoint = {
            "checkpoint": {"latest": {"resources": [{"type": f"pulumi-python:dynamic/muster:{t}"} for t in types]}}
        }
        (tmp_path / "s.json").write_text(json.dumps(checkpoint))
        return tmp_path / "s.json"

    assert holds_slurm_cluster(tmp_path / "none.json") is False
    assert holds_slurm_cluster(state("ChangeGuard", "DockerNode")) is False
    assert holds_slurm_cluster(state("ChangeGuard", "DockerNode", "SlurmCluster")) is True
    (tmp_path / "s.json").write_text("{}")
    assert holds_slurm_cluster(tmp_path / "s.json") is True
    (tmp_path / "s.json").write_text(json.dumps({"checkpoint": {"latest": None}}))
    assert holds_slurm_cluster(tmp_path / "s.json") is False


class FakeEngine:
    """A Docker engine that answers every query with an error status."""

    def __init__(self, status: int) -> None:
        self.status = status

    def top(self, _container: str) -> dict[str, list[list[str]]]:
        response = Response()
        response.status_code = self.status
        raise (NotFound if self.status == 404 else APIError)("refused", response=response)


def test_only_a_missing_or_stopped_container_counts_as_not_running() -> None:
    assert local_queue._processes(FakeEngine(404), "c") is None
    assert local_queue._processes(FakeEngine(409), "c") == []
    with pytest.raises(APIError):
        local_queue._processes(FakeEngine(500), "c")
