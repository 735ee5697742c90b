"""The names of jobs, which their users choose, neither break nor forge a row of what muster reads from squeue."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bootstrap.sessions import Sessions
from bootstrap.transport.base import Completed
from bootstrap.transport.local import LocalTransport
from bootstrap.upgrade import execute
from cluster.inventory import Node
from infra.targets import facts
from infra.targets.aws import run_command
from slurm.control.follow import follow_job
from slurm.control.named_jobs import LIST_RUNNING, RunningJob, parse_running, split_rows
from slurm.control.nodes import parse_listed, set_comment, update_nodes
from slurm.control.snapshot import TAKE, parse_snapshot

# Like squeue, this prints names byte by byte.
SQUEUE = """#!{python} -SE
import json, re, sys
for id_, name in json.load(open("{jobs}")).items():
    values = {{"i": id_, "j": name, "u": "carol", "U": "2002", "P": "gpu", "T": "RUNNING", "S": "2026-11-16T19:00:00"}}
    values.update({{"M": "1:00", "D": "1", "R": "gpu-1", "r": "None"}})
    row = re.sub("%(.)", lambda match: values[match[1]], sys.argv[-1])
    sys.stdout.buffer.write(row.encode("latin-1") + b"\\n")
"""
FORGED = {
    "running": "x\n9|alice|forged",
    "listed": "x\n9|alice|gpu|RUNNING|1:00|1|gpu-1|forged",
    "old form of the list": "x\n9|forged|alice|gpu|RUNNING|1:00|1|gpu-1",
    "queued": "x\n9|2000|gpu|RUNNING|2026-11-16T18:00:00|None|forged",
    "mark of status": "x\n---muster---\n---muster---",
    "section of a snapshot": "x\n== total\n999\n== queue",
    "error": "x\nsqueue: error",
    "carriage return": "x\r9|alice|forged",
    "line separators of Unicode": "x\u2028".encode().decode("latin-1") + "9|alice|forged\x0b\x1e9|alice|forged",
    "columns": "x|9|alice|forged",
    "tabs": "x\t9\talice",
    "escape sequence": "\x1b[2J\x1b]0;title\x07",
    "not UTF-8": "\xff\xfe",
    "backslashes": "x\\n9|alice|gpu|RUNNING|1:00|1|gpu-1|forged\\c",
    "empty": "",
    "placeholders": "%i %u $(id) `id` '\"",
}


@pytest.fixture(params=FORGED.values(), ids=list(FORGED))
def names(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Put a squeue with three jobs first in PATH, of which an attacker has named the second."""
    jobs = {"7": "before", "8": request.param, "10": "after"}
    (tmp_path / "jobs").write_text(json.dumps(jobs))
    commands = {
        "squeue": SQUEUE.format(python=sys.executable, jobs=tmp_path / "jobs"),
        "mariadb": "#!/bin/sh\necho 3\n",
        **dict.fromkeys(("sacct", "sacctmgr", "sinfo", "scontrol", "systemctl"), "#!/bin/sh\n"),
    }
    for name, text in commands.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return jobs


def run(script: str) -> str:
    # Strict, as in `teardown`.
    return subprocess.run(["sh", "-c", script], capture_output=True, check=True, encoding="utf-8").stdout


def check_names(listed: dict[str, str], names: dict[str, str]) -> None:
    """Assert that there are three jobs, and that terminals can print the name of the attacker's."""
    assert list(listed) == list(names)
    assert (listed["7"], listed["10"]) == ("before", "after")
    assert listed["8"].isprintable()
    if names["8"].isprintable() and names["8"].isascii():
        assert listed["8"] == names["8"]


def test_running_jobs_cannot_be_forged(names: dict[str, str]) -> None:
    jobs = parse_running(run(LIST_RUNNING)).listed
    check_names({job.id: job.name for job in jobs}, names)
    assert {job.user for job in jobs} == {"carol"}


def test_status_cannot_be_forged(names: dict[str, str]) -> None:
    slurm = facts.parse(run(facts.SCRIPT))
    check_names({job.id: job.name for job in slurm.jobs}, names)
    assert {(job.user, job.state, job.where) for job in slurm.jobs} == {("carol", "RUNNING", "gpu-1")}
    assert (slurm.problem, slurm.more_jobs) == ("", 0)


@pytest.mark.parametrize("names", ["x"], indirect=True)
def test_long_names_do_not_make_status_too_long_for_run_command(names: dict[str, str], tmp_path: Path) -> None:
    assert names
    (tmp_path / "jobs").write_text(json.dumps({str(number): "n" * 1000 for number in range(150)}))
    text = run(facts.SCRIPT)
    slurm = facts.parse(text)
    assert len(text) < run_command._MAX_OUTPUT_CHARACTERS
    assert len(slurm.jobs) > 10
    assert len(slurm.jobs) + slurm.more_jobs == 150


@pytest.mark.parametrize("names", ["x"], indirect=True)
@pytest.mark.parametrize(("count", "name"), [(10_000, "train"), (150, "n" * 1000), (1, "n" * 30_000), (3, "train")])
def test_running_jobs_fit_into_run_command_and_none_is_missed(
    names: dict[str, str], tmp_path: Path, count: int, name: str
) -> None:
    assert names
    (tmp_path / "jobs").write_text(json.dumps({str(number): name for number in range(count)}))
    text = run(LIST_RUNNING)
    jobs = parse_running(text)
    assert len(text) < run_command._MAX_OUTPUT_CHARACTERS
    assert len(jobs.listed) + jobs.more == count
    assert jobs.listed[0] == RunningJob("0", "carol", jobs.listed[0].name)
    assert name.startswith(jobs.listed[0].name)
    assert len(jobs.listed) == count or len(jobs.listed) > 10


@pytest.mark.parametrize("names", ["x"], indirect=True)
def test_a_name_cannot_forge_the_number_of_jobs(names: dict[str, str], tmp_path: Path) -> None:
    assert names
    (tmp_path / "jobs").write_text(json.dumps({"7": "+250\n+250"}))
    assert parse_running(run(LIST_RUNNING)).more == 0


def test_snapshot_of_an_upgrade_cannot_be_forged(names: dict[str, str]) -> None:
    snapshot = parse_snapshot(run(TAKE))
    check_names({id_: job.name for id_, job in snapshot.queue.items()}, names)
    assert {(job.uid, job.state) for job in snapshot.queue.values()} == {("2002", "RUNNING")}
    assert snapshot.total == 3


@pytest.mark.parametrize("names", ["x"], indirect=True)
def test_the_snapshot_of_an_upgrade_may_be_longer_than_the_output_of_run_command(
    names: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the list of all jobs, none of which may be left out: it comes as a file."""
    assert names
    jobs = {str(number): "train" for number in range(10_000)}
    (tmp_path / "jobs").write_text(json.dumps(jobs))
    monkeypatch.setattr(execute, "SNAPSHOT", str(tmp_path / "snapshot"))
    node = Node(name="ctl", role="controller", address="a", host_key="k", machine_id="m", cpus=2, memory_mb=2048)
    outputs: list[str] = []

    class RecordingTransport(LocalTransport):
        def run(self, *args: Any, **kwargs: Any) -> Completed:
            done = super().run(*args, **kwargs)
            outputs.append(done.out)
            return done

    with Sessions(lambda _node: RecordingTransport()) as sessions:
        text = execute.take_snapshot(sessions, node)
    assert len(text) > run_command._MAX_OUTPUT_CHARACTERS
    assert parse_snapshot(text).queue.keys() == jobs.keys()
    assert outputs == [""]


@pytest.mark.parametrize("names", ["any"], indirect=True)
def test_failing_squeue_is_an_error(names: dict[str, str], tmp_path: Path) -> None:
    assert names
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact' >&2\nexit 1\n")
    assert "Unable to contact" in facts.parse(run(facts.SCRIPT)).problem
    for script in (LIST_RUNNING, TAKE):
        with pytest.raises(subprocess.CalledProcessError) as error:
            run(script)
        assert "Unable to contact" in error.value.stderr


def test_rows_end_at_line_feeds_only() -> None:
    assert split_rows("") == []
    assert split_rows("a\u2028b\n\nc\x1ed\n") == ["a\u2028b", "", "c\x1ed"]
    assert parse_running("7|ann|a\x85b\n").listed == (RunningJob("7", "ann", "a\x85b"),)


@pytest.mark.parametrize("text", ["a file\ngpu-2|idle|none", "a\rb", "a\tb\x1b[2J", "a\u2028b"])
def test_reasons_of_nodes_are_one_line(text: str) -> None:
    """A reason may quote what a job of a user left behind, such as the name of a file."""
    for command in (update_nodes("gpu-1", "drain", text), set_comment("gpu-1", text)):
        written = command[-1].partition("=")[2]
        assert written.isprintable()
        (listed,) = parse_listed(f"gpu-1|drained|{written}\n")
        assert listed.node == "gpu-1"


@pytest.mark.parametrize(
    "name",
    [
        "a\nb",
        "x JobState=FAILED Reason=forged NodeList=forged",
        "x\n   Requeue=1 ExitCode=7:0\n   StdOut=/forged",
        "plain",
    ],
)
@pytest.mark.parametrize("log_name", ["log", "my logs StdOut=1.out"])
def test_name_does_not_change_the_state_of_a_followed_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, log_name: str
) -> None:
    log = tmp_path / log_name
    log.write_text("step 1\n")
    (tmp_path / "info").write_text(
        f"JobId=7 JobName={name}\n   JobState=COMPLETED Reason=None Dependency=(null)\n"
        "   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0\n   NodeList=gpu-1\n"
        f"   StdErr=\n   StdIn=/dev/null\n   StdOut={log}\n"
    )
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\ncat {tmp_path}/info\n")
    (tmp_path / "squeue").write_text("#!/bin/sh\necho 'COMPLETED|None|gpu-1'\n")
    for command in ("scontrol", "squeue"):
        (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert run(follow_job("7", 0)).split("\n") == [
        "\x1estate|COMPLETED|None|gpu-1|0:0", f"\x1elog|{log}", "step 1", "\x1eoffset|7", ""
    ]  # fmt: skip
