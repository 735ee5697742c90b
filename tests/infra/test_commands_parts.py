"""The deciding parts of the commands: job files, followed jobs, node states, outputs, failures, figures."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, cast

import pytest

from infra.commands import bootstrap, demo, kept_caches, outcome, output, screen, status, submit, teardown, up, where
from infra.commands.cluster_facts import Machine, Slurm, SlurmNode, parse
from infra.engine.events import Failure, Result
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import Home
from infra.inventory import Node
from infra.targets import Leftover

REPO = Path(__file__).parents[2]


def node(name: str, role: Any = "compute") -> Node:
    return Node(name=name, role=role, address="10.0.0.1", host_key="k", machine_id="m", cpus=2, memory_mb=2048)


SINFO = "gpu-1|idle|0/2/0/2|none\ngpu-2|down*|0/0/2/2|Not responding\n---muster---\n"
SQUEUE = "7|train|alice|gpu|PENDING|0:00|2|(Resources)\n8|a|b|gpu|RUNNING|1:02|1|gpu-1\n---muster---\n"
UNITS = "slurmctld|active\nslurmdbd|failed\nmariadb|active\n"
UP = Machine("running", 60.0)


def test_the_controllers_answer_is_read() -> None:
    slurm = parse(SINFO + SQUEUE + UNITS)
    assert slurm.nodes["gpu-2"] == SlurmNode("down*", "0/0/2/2", "Not responding")
    assert [(job.id, job.state, job.where) for job in slurm.jobs] == [
        ("7", "PENDING", "(Resources)"),
        ("8", "RUNNING", "gpu-1"),
    ]
    assert slurm.daemons == {"slurmctld": "active", "slurmdbd": "failed", "mariadb": "active"}
    assert slurm.problem == ""


def test_a_controller_that_does_not_answer_is_a_problem_not_an_empty_queue() -> None:
    broken = "slurm_load_partitions: error: Unable to contact slurm controller\n---muster---\n---muster---\n"
    assert "Unable to contact" in parse(broken + UNITS).problem


@pytest.mark.parametrize(
    ("of", "machine", "known", "state", "why"),
    [
        (node("gpu-1"), UP, {"gpu-1": SlurmNode("idle")}, "idle", ""),
        (node("gpu-1"), UP, {"gpu-1": SlurmNode("mixed-")}, "mixed-", ""),
        (node("gpu-1"), UP, {"gpu-1": SlurmNode("drained", reason="bad disk")}, "drained", "bad disk"),
        (node("gpu-1"), UP, {"gpu-1": SlurmNode("idle*")}, "idle*", "not responding"),
        (node("gpu-1"), UP, {}, "unknown", "not in slurm.conf"),
        (node("gpu-1"), Machine("gone"), {"gpu-1": SlurmNode("idle")}, "gone", "container gone"),
        (node("gpu-1"), Machine("exited", exit_code=137), {}, "exited", "container exited with code 137"),
        (node("login", "login"), UP, {}, "up", ""),
    ],
)
def test_the_state_of_a_node(of: Node, machine: Machine, known: dict[str, SlurmNode], state: str, why: str) -> None:
    assert status.node_state(of, machine, Slurm(nodes=known)) == (state, why)


def test_nodes_are_not_blamed_for_a_controller_that_is_silent() -> None:
    assert status.node_state(node("gpu-1"), UP, Slurm(problem="no answer")) == ("unknown", "")


def test_a_job_file_is_found_here_or_in_the_repository(tmp_path: Path) -> None:
    home = Home.of({}, repo=REPO)
    own = tmp_path / "own.sbatch"
    own.write_text("#!/bin/sh\n")
    assert submit.job_file(str(own), home) == own
    assert submit.job_file("slurm/jobs/smoke.sbatch", home).is_file()
    with pytest.raises(Stop) as stop:
        submit.job_file("slurm/jobs/none.sbatch", home)
    assert stop.value.code == BAD_INPUT
    assert "slurm/jobs/none.sbatch" in stop.value.what
    assert "slurm/jobs/smoke.sbatch" in stop.value.fix


def test_output_and_control_lines_are_told_apart_also_within_a_line() -> None:
    class Process:
        stdout = io.BytesIO(
            b"\x1estate|PENDING|Resources||0:0\nhello\nhalf\x1eoffset|10\n\x1estate|RUNNING||gpu-1|0:0\n"
        )

    assert list(submit.pieces(cast("Any", Process))) == [
        (b"", "state|PENDING|Resources||0:0"),
        (b"hello\n", ""),
        (b"half", "offset|10"),
        (b"", "state|RUNNING||gpu-1|0:0"),
    ]


def test_a_followed_job_says_when_its_state_or_reason_changes() -> None:
    job = submit.Followed("7")
    assert job.take("state|PENDING|Resources||0:0")
    assert not job.take("log|/shared/home/a/jobs/x.out")
    assert not job.take("offset|42")
    assert job.take("state|RUNNING|None|gpu-1|0:0")
    assert job.take("state|FAILED|NonZeroExitCode|gpu-1|3:0")
    assert (job.state, job.exit_code, job.log, job.offset) == ("FAILED", "3:0", "/shared/home/a/jobs/x.out", 42)


@pytest.mark.parametrize(
    ("last", "shown"),
    [(None, True), ("ready", True), ("failed", False), ("running", False)],
)
def test_ready_is_shown_only_if_the_last_up_made_it_so(last: str | None, shown: bool) -> None:
    ended = outcome.Outcome(last, "2026-01-01T00:00:00+00:00") if last else None
    found = output.trusted({"ready": {"nodes": []}, "cluster": "demo"}, ended)
    assert ("ready" in found) is shown
    assert found["cluster"] == "demo"


def test_the_outcome_of_an_up_is_kept(tmp_path: Path) -> None:
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")
    assert outcome.read(stack) is None
    ended = outcome.Outcome("ready", "2026-01-01T00:00:00+00:00", 12.5, True, {"machines": 2.0})
    outcome.write(stack, ended)
    assert outcome.read(stack) == ended
    stack.last_up.write_text("{")
    assert outcome.read(stack) is None


def test_a_failed_up_is_one_block() -> None:
    stack = Home.of({"MUSTER_HOME": "/h"}).stack("s")
    message = "node gpu-2, step slurmd: fatal: no key. Log: journalctl -u slurmd. Fix: put the key there."
    stop = up.failed(stack, Result({}, (Failure("slurm", message), Failure("", "stopped"))))
    assert stop.what.splitlines() == [
        "up failed: slurm",
        "  node gpu-2, step slurmd: fatal: no key.",
        "  log: journalctl -u slurmd.",
        "  fix: put the key there.",
        "  stopped",
        "everything Pulumi said: /h/s/up.log",
    ]


def test_an_up_that_was_stopped_is_no_failure_of_anything() -> None:
    stop = up.failed(Home.of({}).stack("s"), Result({}, (Failure("", "update canceled"),)))
    assert (stop.what, stop.code) == ("up was stopped", 130)


def test_shares_add_up_to_the_whole() -> None:
    assert demo.shares({"a": 1.0, "b": 3.0}) == {"a": 0.25, "b": 0.75}
    assert demo.shares({}) == {}


def test_setup_phases_come_from_its_record_where_there_is_one(tmp_path: Path) -> None:
    home = Home.of({"MUSTER_CACHE": str(tmp_path)})
    assert demo.setup_phases(home) == {}
    home.setup_log.parent.mkdir(parents=True)
    phases = {
        "preflight": {"seconds": 1.5, "state": "done"},
        "env": {"seconds": 0.5, "state": "cached"},
        "image": {"seconds": 40.0, "state": "done"},
    }
    home.setup_log.write_text(json.dumps({"phases": phases}))
    assert demo.setup_phases(home) == {"setup: checks": 2.0, "setup: image": 40.0}


def test_what_another_stack_owns_is_left_alone() -> None:
    ours, nobodys, theirs = (Leftover("container", n, stack=s) for n, s in (("a", "mine"), ("b", ""), ("c", "other")))
    assert teardown.own([ours, nobodys, theirs], "mine") == [ours, nobodys]


def test_secrets_of_an_exported_state_are_unwrapped() -> None:
    secret = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "plaintext": '"key"'}
    state = [
        {"type": "pulumi:pulumi:Stack"},
        {"type": "pulumi-python:muster:SlurmCluster", "inputs": {"spec": "{}", "slurm_key": secret}},
    ]
    assert bootstrap.inputs(state) == {"spec": "{}", "slurm_key": "key"}
    with pytest.raises(Stop, match="no Slurm cluster"):
        bootstrap.inputs(state[:1])


@pytest.mark.parametrize("name", ["../x", "A", "", "a/b", "a.b", "-x", "state", "locks", "receipts", "passphrase"])
def test_a_name_that_cannot_be_a_stack_is_refused(name: str) -> None:
    with pytest.raises(Stop) as stop:
        where.stack_home(name)
    assert stop.value.code == BAD_INPUT
    assert f"stack: '{name}'" in stop.value.what
    assert "allowed: " in stop.value.what


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (913_000_000, "913 MB"), (5_700_000_000, "5.7 GB")]
)
def test_sizes(count: int, text: str) -> None:
    assert screen.size(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7300, "2 h 1 min")])
def test_durations(seconds: float, text: str) -> None:
    assert screen.duration(seconds) == text


def test_the_size_of_a_folder_is_measured(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100_000)
    measured = kept_caches._tree_size(tmp_path)
    assert measured is not None
    assert measured >= 100_000
    assert kept_caches._tree_size(tmp_path / "gone") is None
