"""Ranks that the kernel kills for lack of memory are named by the process that started them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainer.life.cause import Cause
from trainer.life.failure import find_first, read_failures
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
    command = [sys.executable, "-c", "input()"]
    children = [
        subprocess.Popen(command, env={**os.environ, **variables, "RANK": str(rank)}, stdin=subprocess.PIPE)
        for rank in (4, 5)
    ]
    yield children
    for child in children:
        child.kill()
        child.wait()


@pytest.mark.fault(33)
def test_a_rank_that_the_kernel_killed_is_named(
    counter: Path, ranks: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv("MUSTER_OUTCOME_FILE", str(folder / "outcome.json"))
    (folder / "progress.json").write_text('{"step": 12}')
    with KilledRanks(folder, tmp_path / "process") as killed:
        killed.check()
        ranks[1].kill()
        ranks[1].wait()
        counter.write_text("oom_kill 2\n")
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
            ranks[0].kill()
            ranks[0].wait()
        else:
            counter.write_text("oom_kill 2\n")
    assert read_failures(tmp_path / "run") == []


def test_a_group_without_a_limit_means_that_the_node_has_no_memory_left(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "mountinfo").write_text("")
    assert read_memory_group(tmp_path) == MemoryGroup(0, None, None)
    killed = RankProcess(1, "run.0", 3 * GIB)
    assert describe_kill(killed, MemoryGroup(1, None, None)) == (
        "killed by the kernel with 3.00 GiB in use: the node has no more memory"
    )
