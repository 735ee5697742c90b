"""Drains by health checks: the table of checks, the cap on drains of a group, and nodes that stay in service."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from slurm.control.nodes import GroupNode, parse_group
from slurm.health import own_node
from slurm.health.check import SLURMD_LIMIT_S, Blame, Check, Context, Expected, HealthProblem, Remedy
from slurm.health.drain import (
    CAP_PREFIX,
    DUPLICATE_JOB,
    GOOD_ROUNDS,
    PREFIX,
    USER_PREFIX,
    count_drainable,
    decide_drain,
    describe_held,
)
from slurm.health.registry import CHECKS, run_scripts, select_checks
from slurm.health.stray_jobs import LOOK_S
from tests.slurm.stubbed_node import StubbedNode

# The start of Python and the reading of files.
START_S = 5.0
EVERYTHING = Expected(gpus=8, nvlinks=18, efa=32, ultraserver=("gb-1",), mounts=("/shared",),
                      software={"driver": {"version": "1", "file": "/f"}})  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_every_check_declares_when_it_runs_whom_it_blames_and_what_undoes_it(check: Check) -> None:
    assert check.contexts
    assert set(check.contexts) <= set(get_args(Context))
    assert check.blame in get_args(Blame)
    assert set(check.remedies) <= set(get_args(Remedy))
    # What a user causes never drains, so that nothing is undone; any other drain can end without a person.
    assert (check.remedies == ()) is (check.blame == "user")
    if {"gate", "prolog", "periodic"} & set(check.contexts):
        assert 0 < check.limit_s + own_node.ACT_LIMIT_S + START_S <= SLURMD_LIMIT_S


def test_all_commands_of_a_round_share_a_time_limit(stubbed: StubbedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one alone would have answered in time."""
    monkeypatch.setenv("PATH", str(stubbed.folder / "bin"), prepend=":")
    monkeypatch.setattr(own_node, "ACT_LIMIT_S", 20.0)
    now = [100.0]
    monkeypatch.setattr(own_node.time, "monotonic", lambda: now[0])
    node = own_node.OwnNode(Expected(), stubbed.folder)
    for _ in range(2):
        node.is_in_maintenance()
        now[0] += 9.0
    stubbed.write_tool("sinfo", f"sleep 5; cat {stubbed.folder / 'node'}")
    with pytest.raises(subprocess.TimeoutExpired):
        node.is_in_maintenance()


def test_names_are_unique() -> None:
    names = [check.name for check in CHECKS]
    assert len(names) == len(set(names))


def test_the_prolog_waits_for_nothing_that_other_machines_answer() -> None:
    names = {check.name for check in select_checks(EVERYTHING, "prolog")}
    assert names >= {"gpu", "xid", "nvlink", "efa", "software"}
    assert names.isdisjoint({"mounts", "clock", "disk", "job-disk"})
    # Users' processes are on the node itself.
    blamed_elsewhere = {check.name for check in select_checks(EVERYTHING, "prolog") if check.blame != "node"}
    assert blamed_elsewhere == {"gpu-processes"}


@pytest.mark.parametrize(
    ("nodes", "percent", "count"),
    [(1, 20, 1), (2, 20, 1), (4, 20, 1), (10, 20, 2), (14, 20, 2), (15, 20, 3), (100, 1, 1), (8, 100, 8), (0, 50, 1)],
)
def test_a_share_of_the_group_but_at_least_one_node_may_be_drained(nodes: int, percent: int, count: int) -> None:
    assert count_drainable(nodes, percent) == count


def group(**reasons: str) -> list[GroupNode]:
    """Return ten running nodes; a reason is `HH:MM:SS text`."""
    drained = {name.replace("_", "-"): reason.split(" ", 1) for name, reason in reasons.items()}
    return [
        GroupNode(name, "drained", *drained[name]) if name in drained else GroupNode(name, "idle", "Unknown", "")
        for name in (f"gpu-{number}" for number in range(1, 11))
    ]


def test_drains_beyond_the_share_are_refused() -> None:
    single, pair = group(gpu_9="10:00:00 health: gpu: x"), group(gpu_8="10:00:00 health: a", gpu_9="10:00:01 health: b")
    assert decide_drain("gpu-1", single, 20)
    assert not decide_drain("gpu-1", pair, 20)
    assert not decide_drain("gpu-1", single, 10)


def test_what_people_drained_does_not_count_and_what_slurm_drained_for_a_prolog_does() -> None:
    assert decide_drain("gpu-1", group(gpu_8="10:00:00 new memory", gpu_9="10:00:00 health of gpu: alice"), 10)
    assert not decide_drain("gpu-1", group(gpu_9="10:00:00 Prolog error"), 10)


def test_nodes_that_drain_at_the_same_time_agree_on_who_stays_drained() -> None:
    """Every node decides by itself after its drain; whatever the order, the first drains stay, as many as allowed."""
    at_once = group(gpu_3="10:00:05 health: c", gpu_1="10:00:05 health: a", gpu_2="10:00:04 health: b")
    for names in itertools.permutations(["gpu-1", "gpu-2", "gpu-3"]):
        assert {name for name in names if decide_drain(name, at_once, 20)} == {"gpu-1", "gpu-2"}
        assert {name for name in names if decide_drain(name, at_once, 10)} == {"gpu-2"}


def test_only_nodes_that_run_count_as_the_group() -> None:
    off = [GroupNode(f"gpu-{number}", "idle~", "Unknown", "") for number in range(20, 120)]
    assert not decide_drain("gpu-1", [*group(gpu_8="1 health: a", gpu_9="1 health: b"), *off], 20)


def test_the_list_of_a_group_is_parsed() -> None:
    text = "gpu-1|idle~|Unknown|none\ngpu-2|drained|2026-11-17T18:00:01|health: a | b\nslurmctld: warning\n"
    assert parse_group(text) == [
        GroupNode("gpu-1", "idle~", "Unknown", ""),
        GroupNode("gpu-2", "drained", "2026-11-17T18:00:01", "health: a | b"),
    ]
    assert [node.powered_on for node in parse_group(text)] == [False, True]


def test_a_comment_tells_why_a_node_with_a_problem_stays_in_service() -> None:
    node, user = HealthProblem("gpu", "7 of 8 GPUs answer"), HealthProblem("job-disk", "/ is full", "user")
    assert describe_held([node, user], over_cap=True) == f"{CAP_PREFIX}gpu: 7 of 8 GPUs answer; job-disk: / is full"
    assert describe_held([node, user], over_cap=False) == f"{USER_PREFIX}job-disk: / is full"
    assert describe_held([node], over_cap=False) == ""
    assert all(prefix.startswith(PREFIX) for prefix in (CAP_PREFIX, USER_PREFIX))


def test_checks_answer_although_the_disk_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("TemporaryFile", "NamedTemporaryFile", "mkstemp", "SpooledTemporaryFile"):
        monkeypatch.setattr(tempfile, name, refuse)
    assert [(answer.output, answer.error) for answer in run_scripts([("echo out; echo err >&2", 20.0)])] == [
        ("out\n", "err\n")
    ]


BROKEN = {"software": {"driver": {"version": "1.0", "file": "/nowhere"}}, "group": "gpu", "max_drained_percent": 20}
REASON = "health: software: driver is no longer 1.0: /nowhere shows nothing"
HELD = f"{CAP_PREFIX}{REASON.removeprefix(PREFIX)}"
OTHER_IS_DRAINED = "gpu-2|drained|2026-01-01T00:00:00|health: gpu: broken"


@pytest.fixture
def stubbed(tmp_path: Path) -> StubbedNode:
    return StubbedNode.create(tmp_path)


def test_beyond_the_cap_the_node_stays_with_a_comment_until_it_is_healthy(stubbed: StubbedNode) -> None:
    stubbed.set_others(OTHER_IS_DRAINED)
    assert stubbed.run("interval", **BROKEN).returncode == 0
    assert (stubbed.state, stubbed.comment) == ("gpu-1|idle|none", HELD)
    assert not stubbed.rounds.exists()
    assert stubbed.run("interval", group="gpu").returncode == 0
    assert (stubbed.state, stubbed.comment) == ("gpu-1|idle|none", "")


def test_a_node_beyond_the_cap_is_drained_when_another_returns(stubbed: StubbedNode) -> None:
    stubbed.set_others(OTHER_IS_DRAINED)
    stubbed.run("interval", **BROKEN)
    stubbed.set_others("gpu-2|idle|Unknown|none")
    stubbed.run("interval", **BROKEN)
    assert (stubbed.state, stubbed.comment) == (f"gpu-1|drained|{REASON}", "")


def test_the_prolog_beyond_the_cap_lets_the_job_start(stubbed: StubbedNode) -> None:
    """If it failed, Slurm would drain the node by itself."""
    stubbed.set_others(OTHER_IS_DRAINED)
    done = stubbed.run("prolog", **BROKEN)
    assert (done.returncode, done.stderr) == (0, f"{REASON}\n")
    assert (stubbed.state, stubbed.comment) == ("gpu-1|idle|none", HELD)


def test_a_node_that_another_overtook_ends_its_own_drain(stubbed: StubbedNode) -> None:
    """Nothing was drained when the node looked, but it is not the first when it looks again."""
    first = stubbed.folder / "first"
    stubbed.write_tool("sinfo", f"""
        IFS="|" read -r name state reason <{stubbed.folder / "node"}
        case "$*" in
          *--partition*)
            echo "$name|$state|2026-01-02T00:00:00|$reason"
            [ ! -e {first} ] || echo "{OTHER_IS_DRAINED}"
            touch {first} ;;
          *) echo "$name|$state|$reason" ;;
        esac""")  # fmt: skip
    stubbed.run("interval", **BROKEN)
    assert (stubbed.state, stubbed.comment) == ("gpu-1|idle|none", HELD)


def test_an_empty_file_of_rounds_counts_as_no_good_round(stubbed: StubbedNode) -> None:
    """A full disk, or a round that is killed while it writes, leaves one."""
    stubbed.set_state(f"gpu-1|drained|{REASON}")
    stubbed.rounds.touch()
    for _ in range(GOOD_ROUNDS):
        assert "drained" in stubbed.state
        assert stubbed.run("interval", group="gpu").returncode == 0
    assert stubbed.state == "gpu-1|idle|none"


@pytest.mark.parametrize("others", [[], [OTHER_IS_DRAINED]], ids=["within the cap", "beyond the cap"])
def test_a_round_that_is_killed_after_its_drain_is_completed_by_the_next(
    stubbed: StubbedNode, monkeypatch: pytest.MonkeyPatch, others: list[str]
) -> None:
    """slurmd kills the program while it waits to look again."""
    monkeypatch.setenv("PATH", str(stubbed.folder / "bin"), prepend=":")
    monkeypatch.setenv("SLURMD_NODENAME", "gpu-1")

    def be_killed(_: float) -> None:
        raise KeyboardInterrupt

    node = own_node.OwnNode(Expected(group="gpu", max_drained_percent=20), stubbed.folder, be_killed)
    with pytest.raises(KeyboardInterrupt):
        node.act([HealthProblem("software", REASON.removeprefix(f"{PREFIX}software: "))])
    assert (stubbed.state, stubbed.rounds.read_text()) == (f"gpu-1|drained|{REASON}", "0")
    stubbed.set_others(*others)
    stubbed.run("interval", **BROKEN)
    if others:
        assert (stubbed.state, stubbed.comment) == ("gpu-1|idle|none", HELD)
        return
    assert stubbed.state == f"gpu-1|drained|{REASON}"
    for _ in range(GOOD_ROUNDS):
        stubbed.run("interval", group="gpu")
    assert stubbed.state == "gpu-1|idle|none"


def test_a_person_who_drains_a_node_meanwhile_is_not_overruled(stubbed: StubbedNode) -> None:
    """A person takes over the drain while the node waits to look again; then it is no longer the node's to end."""
    stubbed.set_others()
    stubbed.write_tool(
        "scontrol",
        f'[ "$3" != state=drain ] || printf "gpu-1|drained|new memory" >{stubbed.folder / "node"}; '
        f'[ "$3" != state=resume ] || printf "gpu-1|idle|none" >{stubbed.folder / "node"}; '
        f'echo "{OTHER_IS_DRAINED}" >{stubbed.others}',
    )
    stubbed.run("interval", **BROKEN)
    assert stubbed.state == "gpu-1|drained|new memory"


def test_a_drain_by_slurm_beyond_the_cap_is_ended(stubbed: StubbedNode) -> None:
    """The prolog could not ask slurmctld, so Slurm drained the node by itself."""
    stubbed.set_state("gpu-1|drained|Prolog error")
    stubbed.set_others(OTHER_IS_DRAINED)
    stubbed.run("interval", **BROKEN)
    assert (stubbed.state, stubbed.comment) == ("gpu-1|idle|none", HELD)


def test_a_job_without_a_user_id_starts_and_drains_nothing(stubbed: StubbedNode) -> None:
    done = stubbed.run("prolog", ultraserver=["gpu-1"], group="gpu")
    assert (done.returncode, done.stderr) == (
        0,
        "health: imex: SLURM_JOB_UID='' is not a user id, so no domain was started\n",
    )
    assert stubbed.state == "gpu-1|idle|none"


def test_a_node_that_slurm_drained_for_a_duplicate_job_returns_once_the_forgotten_job_is_gone(tmp_path: Path) -> None:
    node = StubbedNode.create(tmp_path)
    node.write_tool("squeue", "echo '8|RUNNING'")
    node.write_tool("systemctl", f'echo "$@" >>{tmp_path / "systemctl"}')
    node.set_state(f"gpu-1|drained|{DUPLICATE_JOB}")
    with_stray = replace(node, jobs=("7", "8"))
    done = with_stray.run("interval")
    assert "slurmctld does not have job 7 here; killed job 7" in done.stderr
    assert (tmp_path / "systemctl").read_text() == "--no-block restart slurmd\n"
    for _ in range(GOOD_ROUNDS):
        assert node.state == f"gpu-1|drained|{DUPLICATE_JOB}"
        replace(node, jobs=("8",)).run("interval")
    assert node.state == "gpu-1|idle|none"


def test_a_forgotten_job_that_does_not_end_restarts_slurmd_only_every_five_minutes(tmp_path: Path) -> None:
    """slurmd runs a round itself when it starts, before it registers."""
    node = StubbedNode.create(tmp_path)
    node.write_tool("squeue", "true")
    restarts = tmp_path / "systemctl"
    node.write_tool("systemctl", f'echo "$@" >>{restarts}')
    node.set_state(f"gpu-1|drained|{DUPLICATE_JOB}")
    with_stray = replace(node, jobs=("7",))
    for _ in range(2):
        assert "killed job 7" in with_stray.run("interval").stderr
    assert len(restarts.read_text().splitlines()) == 1
    then = time.time() - LOOK_S
    os.utime(tmp_path / "strays-registered", (then, then))
    with_stray.run("interval")
    assert len(restarts.read_text().splitlines()) == 2
    assert node.state == f"gpu-1|drained|{DUPLICATE_JOB}"


def test_a_full_run_folder_does_not_keep_a_round_from_its_drain(tmp_path: Path) -> None:
    """A folder cannot be created below a file, as a file cannot in a full /run."""
    node = StubbedNode.create(tmp_path)
    (tmp_path / "run").write_text("")
    node.run("interval", **BROKEN)
    assert node.state == f"gpu-1|drained|{REASON}"


@pytest.mark.parametrize("reason", ["new memory", "duplicate jobid, asks Ann", "Not responding"])
def test_a_drain_of_a_person_is_not_taken_over(tmp_path: Path, reason: str) -> None:
    node = StubbedNode.create(tmp_path)
    node.set_state(f"gpu-1|drained|{reason}")
    for _ in range(2 * GOOD_ROUNDS):
        replace(node, jobs=("7",)).run("interval")
    assert node.state == f"gpu-1|drained|{reason}"


@pytest.fixture
def hanging() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


KILL_FAILED = "Kill task failed (JobId=7 StepId=0)"
HUNG_REASON = "health: unkillable: job 7: python (state D)"


@pytest.mark.fault(36)
def test_a_step_that_cannot_be_killed_drains_the_node_until_it_is_gone(
    tmp_path: Path, hanging: subprocess.Popen[bytes]
) -> None:
    node = StubbedNode.create(tmp_path)
    node.set_state(f"gpu-1|drained|{KILL_FAILED}")
    node.record_hung(hanging.pid)
    for _ in range(GOOD_ROUNDS + 1):
        node.run("interval")
        assert node.state == f"gpu-1|drained|{HUNG_REASON}"
    hanging.kill()
    hanging.wait()
    for _ in range(GOOD_ROUNDS):
        assert node.state == f"gpu-1|drained|{HUNG_REASON}"
        node.run("interval")
    assert node.state == "gpu-1|idle|none"


@pytest.mark.fault(36)
def test_the_limit_on_drains_never_resumes_a_node_that_slurm_drained_for_a_step_that_hangs(
    tmp_path: Path, hanging: subprocess.Popen[bytes]
) -> None:
    """The file server of all nodes is gone, so Slurm drains all of them, and the limit is passed."""
    limits = {"group": "gpu", "max_drained_percent": 20}
    node = StubbedNode.create(tmp_path)
    node.set_others(OTHER_IS_DRAINED)
    node.set_state(f"gpu-1|drained|{KILL_FAILED}")
    node.record_hung(hanging.pid)
    for _ in range(2):
        node.run("interval", **limits)
        assert (node.state, node.comment) == (f"gpu-1|drained|{HUNG_REASON}", "")
    hanging.kill()
    hanging.wait()
    for _ in range(GOOD_ROUNDS):
        assert node.state == f"gpu-1|drained|{HUNG_REASON}"
        node.run("interval", **limits)
    assert node.state == "gpu-1|idle|none"


@pytest.mark.fault(36)
def test_a_node_in_service_on_which_a_step_hangs_is_drained_only_within_the_limit(
    tmp_path: Path, hanging: subprocess.Popen[bytes]
) -> None:
    node = StubbedNode.create(tmp_path)
    node.set_others(OTHER_IS_DRAINED)
    node.record_hung(hanging.pid)
    node.run("interval", group="gpu", max_drained_percent=20)
    assert (node.state, node.comment) == ("gpu-1|idle|none", f"{CAP_PREFIX}{HUNG_REASON.removeprefix(PREFIX)}")
