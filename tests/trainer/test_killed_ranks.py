"""Ranks that the kernel kills for lack of memory are named by the process that started them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from trainer import torchrun
from trainer.life.cause import Cause
from trainer.life.failure import describe, find_first, read_failures, record
from trainer.life.killed_ranks import KilledRanks, MemoryGroup, RankProcess, describe_kill, read_memory_group

GIB = 2**30
MOUNTS = {
    "memory.events": "36 35 0:32 / {} rw - cgroup2 cgroup rw\n",
    "memory.oom_control": "36 35 0:32 / {} rw - cgroup cgroup rw,memory\n",
}
GROUPS = {"memory.events": "0::/job/task\n", "memory.oom_control": "4:memory:/job/task\n0::/elsewhere\n"}
LIMITS = {"memory.events": ("memory.max", "memory.peak")}
LIMITS |= {"memory.oom_control": ("memory.limit_in_bytes", "memory.max_usage_in_bytes")}


@pytest.fixture(params=["memory.events", "memory.oom_control"])
def counter(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the file that counts kills of the group of the process in tmp_path/process, in both kinds of cgroups."""
    group, process = tmp_path / "mount" / "job" / "task", tmp_path / "process"
    group.mkdir(parents=True)
    process.mkdir()
    (process / "cgroup").write_text(GROUPS[request.param])
    (process / "mountinfo").write_text(MOUNTS[request.param].format(tmp_path / "mount"))
    limit, peak = LIMITS[request.param]
    (group / limit).write_text("max\n" if request.param == "memory.events" else f"{2**63 - 4096}\n")
    (group.parent / limit).write_text(f"{2 * GIB}\n")
    (group.parent / peak).write_text(f"{2 * GIB}\n")
    # An outer group may count processes of other jobs too.
    (group.parent / request.param).write_text("oom_kill 7\n")
    (group / request.param).write_text("under_oom 0\noom_kill 1\n")
    return group / request.param


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Return two child processes that have the environment of ranks."""
    variables = {"TORCHELASTIC_RUN_ID": "run", "TORCHELASTIC_RESTART_COUNT": "2"}
    children = [start_rank(rank, **variables) for rank in (4, 5)]
    yield children
    for child in children:
        end_rank(child)


def start_rank(rank: int, **variables: str) -> subprocess.Popen[bytes]:
    """Start a child process with the environment of a rank, and wait until /proc shows that environment."""
    child = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        env={**os.environ, **variables, "RANK": str(rank)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline()
    return child


def end_rank(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            stream.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a run that has completed 12 steps."""
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv("MUSTER_OUTCOME_FILE", str(folder / "outcome.json"))
    (folder / "progress.json").write_text('{"step": 12}')
    return folder


class Clock:
    """A clock that moves only when the test moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.fault(33)
def test_a_rank_that_the_kernel_killed_is_named(
    counter: Path, ranks: list[subprocess.Popen[bytes]], tmp_path: Path, folder: Path
) -> None:
    with KilledRanks(folder, tmp_path / "process", Clock()) as killed:
        killed.check()
        # The kernel counts first.
        counter.write_text("oom_kill 2\n")
        end_rank(ranks[1])
    (failure,) = read_failures(folder)
    assert find_first([failure]) == failure
    assert (failure.rank, failure.step, failure.cause, failure.attempt) == (5, 12, Cause.HOST_MEMORY, "run.2")
    assert "all processes of the job on this node may use 2.00 GiB, of which 2.00 GiB were used at once" in str(failure)
    outcome = json.loads((folder / "outcome.json").read_text())
    assert (outcome["outcome"], outcome["failure"]["rank"]) == ("failed", 5)
    assert outcome["failure"]["fix"].startswith("use fewer data.workers")


@pytest.mark.parametrize("happens", ["a rank ends", "another process is killed"])
def test_nothing_else_counts_as_a_kill_of_a_rank(
    counter: Path, ranks: list[subprocess.Popen[bytes]], tmp_path: Path, happens: str
) -> None:
    with KilledRanks(tmp_path / "run", tmp_path / "process") as killed:
        killed.check()
        if happens == "a rank ends":
            end_rank(ranks[0])
        else:
            counter.write_text("oom_kill 2\n")
    assert read_failures(tmp_path / "run") == []


def test_a_rank_that_ends_long_after_a_kill_of_another_process_was_not_killed(
    counter: Path, ranks: list[subprocess.Popen[bytes]], tmp_path: Path, folder: Path
) -> None:
    clock = Clock()
    killed = KilledRanks(folder, tmp_path / "process", clock)
    killed.check()
    counter.write_text("oom_kill 2\n")
    for _ in range(2):
        killed.check()
        clock.seconds += 11
    end_rank(ranks[0])
    killed.check()
    assert read_failures(folder) == []
    # The next kill is explained again.
    counter.write_text("oom_kill 3\n")
    killed.check()
    end_rank(ranks[1])
    killed.check()
    assert [failure.rank for failure in read_failures(folder)] == [5]


def test_a_rank_with_a_failure_of_its_own_was_not_killed(
    counter: Path, ranks: list[subprocess.Popen[bytes]], tmp_path: Path, folder: Path
) -> None:
    killed = KilledRanks(folder, tmp_path / "process", Clock())
    killed.check()
    counter.write_text("oom_kill 2\n")
    lost = replace(describe(RuntimeError("lost a peer"), rank=4, step=12), attempt="run.2")
    record(folder, lost)
    end_rank(ranks[0])
    killed.check()
    assert read_failures(folder) == [lost]
    end_rank(ranks[1])
    killed.check()
    assert [failure.rank for failure in read_failures(folder)] == [4, 5]


@pytest.mark.parametrize("is_started_again", [False, True])
def test_a_killed_rank_is_the_outcome_only_of_its_own_attempt(
    counter: Path, ranks: list[subprocess.Popen[bytes]], tmp_path: Path, folder: Path, is_started_again: bool
) -> None:
    with KilledRanks(folder, tmp_path / "process", Clock()) as killed:
        killed.check()
        counter.write_text("oom_kill 2\n")
        for child in ranks:
            end_rank(child)
        killed.check()
        if is_started_again:
            again = start_rank(4, TORCHELASTIC_RUN_ID="run", TORCHELASTIC_RESTART_COUNT="3")
            killed.check()
            end_rank(again)
    assert (folder / "outcome.json").exists() == (not is_started_again)


def test_a_damaged_outcome_does_not_hide_how_torchrun_ended(
    counter: Path, ranks: list[subprocess.Popen[bytes]], tmp_path: Path, folder: Path
) -> None:
    (folder / "outcome.json").write_text('{"outcome": "failed", "from": "another version"}')
    with KilledRanks(folder, tmp_path / "process", Clock()) as killed:
        killed.check()
        counter.write_text("oom_kill 2\n")
        end_rank(ranks[0])
        killed.check()
        # /proc cannot be read at the end either.
        (tmp_path / "process" / "cgroup").unlink()
    assert [failure.rank for failure in read_failures(folder)] == [4]
    assert "another version" in (folder / "outcome.json").read_text()


def test_a_start_without_a_job_script_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_OUTCOME_FILE", raising=False)
    with pytest.raises(SystemExit, match=r"MUSTER_OUTCOME_FILE is not set; train\.sbatch sets it"):
        torchrun.main()


def test_a_group_without_a_limit_means_that_the_node_has_no_memory_left(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "mountinfo").write_text("")
    assert read_memory_group(tmp_path) == MemoryGroup(0, None, None)
    killed = RankProcess(1, "run.0", 3 * GIB)
    assert describe_kill(killed, MemoryGroup(1, None, None)) == (
        "killed by the kernel with 3.00 GiB in use: the node has no more memory"
    )
