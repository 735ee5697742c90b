"""Jobs that a boot has ended, on a node that is back before slurmctld has missed it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from slurm.health.lost_jobs import REASON, find_lost
from tests.slurm.stubbed_node import StubbedNode


@pytest.fixture
def booted(tmp_path: Path) -> StubbedNode:
    """A node that runs its first round after a boot; slurmctld has job 7 on it."""
    node = StubbedNode.create(tmp_path)
    node.set_state("gpu-1|allocated|none")
    node.write_tool("squeue", "echo '7|RUNNING'")
    return node


def test_only_jobs_that_should_run_and_have_no_step_are_lost() -> None:
    states = {
        "12": "RUNNING",
        "7": "SUSPENDED",
        "8": "RUNNING",
        "9": "CONFIGURING",
        "10": "COMPLETING",
        "11": "PENDING",
    }
    assert find_lost(states, {"8"}) == ["7", "12"]


def test_a_node_that_has_booted_under_a_job_is_declared_down_once(booted: StubbedNode) -> None:
    """slurmctld then requeues the job, and the registration returns the node to service."""
    done = booted.run("interval")
    assert (done.returncode, done.stderr) == (0, "health: this node has booted, which ended job 7\n")
    assert booted.state == f"gpu-1|down|{REASON}"
    booted.set_state("gpu-1|allocated|none")
    assert booted.run("interval").stderr == ""
    assert booted.state == "gpu-1|allocated|none", "later, a job of the node may have its steps elsewhere"


@pytest.mark.parametrize("state", ["idle", "down*", "drained", "completing", "allocated#", "mixed#"])
def test_a_node_without_running_jobs_does_not_ask_for_them(booted: StubbedNode, state: str) -> None:
    booted.set_state(f"gpu-1|{state}|none")
    booted.write_tool("squeue", f"touch {booted.folder}/asked")
    booted.run("interval")
    assert not (booted.folder / "asked").exists()
    assert booted.state == f"gpu-1|{state}|none"


def test_a_job_whose_steps_live_is_not_lost(booted: StubbedNode) -> None:
    """slurmd alone has started again, and the file that says that the node has run a round is gone."""
    alive = replace(booted, jobs=("7",))
    alive.run("interval")
    assert alive.state == "gpu-1|allocated|none"


def test_a_draining_node_keeps_its_reason(booted: StubbedNode) -> None:
    booted.set_state("gpu-1|draining|new memory")
    booted.run("interval")
    assert booted.state == "gpu-1|down|new memory"


def test_a_first_round_that_is_repeated_does_not_ask_again(booted: StubbedNode) -> None:
    """It was killed before its checks ended; slurmd has registered since, and a new job has no step here yet."""
    booted.write_tool("squeue", "exit 1")
    booted.run("interval")
    (booted.folder / "run" / "gate").unlink()
    booted.write_tool("squeue", "echo '8|RUNNING'")
    booted.run("interval")
    assert booted.state == "gpu-1|allocated|none"


@pytest.mark.parametrize("tool", ["sinfo", "squeue"])
def test_the_checks_run_if_slurmctld_does_not_answer(booted: StubbedNode, tool: str) -> None:
    booted.write_tool(tool, "exit 1")
    assert booted.run("interval").returncode == 0
    assert (booted.folder / "run" / "gate").exists()
