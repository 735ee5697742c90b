"""Processes of jobs: found by cgroup or by parent, never of Slurm itself, and signalled until there is no new one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurm.health.job_processes import JobProcess, list_job_processes, list_steps, signal_jobs
from slurm.health.stray_jobs import LOOK_S, find_strays, is_due
from tests.slurm.job_groups import JOBS_OF_GROUPS
from tests.slurm.proc_tree import STEPD, add_process, add_step, start_without_main_thread

STEP = "/system.slice/slurmstepd.scope/job_12/step_0"


def test_processes_are_found_by_the_cgroup_of_their_job(tmp_path: Path) -> None:
    add_step(tmp_path, 10, "slurmstepd: [12.0]", group=f"{STEP}/slurm")
    add_process(tmp_path, 11, name="a) b", parent=10, group=f"{STEP}/user/task_0", state="D", started=7)
    add_process(tmp_path, 12, uid=0, name="sleep", parent=10, group=f"{STEP}/user/task_0")
    add_process(tmp_path, 13, group="/user.slice/user-2000.slice/user@2000.service/job_99")
    add_process(tmp_path, 14, group="/slurm/uid_2000/job_13/step_batch/task_0")
    # Neither is Slurm's.
    add_process(tmp_path, 16, group="/system.slice/ci.service/job_98")
    add_process(tmp_path, 17, group="/job_97/step_0")
    (tmp_path / "self").mkdir()
    (tmp_path / "15").mkdir()
    assert list_job_processes(tmp_path) == [
        JobProcess(11, 7, "12", "a) b", "D", 2000),
        JobProcess(14, 100, "13", "python", "S", 2000),
    ]
    assert list_steps(tmp_path) == {"12"}


@pytest.mark.parametrize("group", JOBS_OF_GROUPS)
def test_only_groups_of_slurm_have_jobs(tmp_path: Path, group: str) -> None:
    add_process(tmp_path, 11, group=group)
    job = JOBS_OF_GROUPS[group]
    assert [process.job for process in list_job_processes(tmp_path)] == ([job] if job else [])


def test_without_cgroups_processes_are_found_by_the_step_that_started_them(tmp_path: Path) -> None:
    # An upgrade of Slurm has replaced the program meanwhile.
    add_step(tmp_path, 10, "slurmstepd: [12.batch]", program=f"{STEPD} (deleted)")
    add_process(tmp_path, 11, parent=10)
    add_process(tmp_path, 12, parent=11, uid=2001)
    # Anybody can give a process any name and title, also root's job.
    add_process(tmp_path, 13, name="slurmstepd", title="slurmstepd: [12.batch]")
    add_process(tmp_path, 14, parent=13)
    add_step(tmp_path, 15, "slurmstepd: [99.batch]", program="/shared/tool")
    add_process(tmp_path, 16, parent=15)
    listed = [(process.pid, process.uid, process.is_in_cgroup) for process in list_job_processes(tmp_path)]
    assert listed == [(11, 2000, False), (12, 2001, False)]
    assert list_steps(tmp_path) == {"12"}


@pytest.mark.parametrize("uid", [0, 2000])
def test_the_command_line_of_other_processes_is_never_read(tmp_path: Path, uid: int) -> None:
    """The kernel would wait for a process whose thread waits for a file server, as a pipe does for who writes to it."""
    add_step(tmp_path, 10, "slurmstepd: [12.batch]")
    folder = add_process(tmp_path, 11, parent=10, uid=uid)
    (folder / "cmdline").unlink()
    os.mkfifo(folder / "cmdline")
    listing = "from pathlib import Path; from slurm.health.job_processes import *; "
    listing += f"print(*list_steps(Path({str(tmp_path)!r})), len(list_job_processes(Path({str(tmp_path)!r}))))"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == f"12 {1 if uid else 0}\n"


def test_a_process_is_not_over_while_a_thread_lives_on(tmp_path: Path) -> None:
    """After SIGKILL the main thread has ended, but another one waits in the kernel; with cgroup v1 it has no group."""
    killed = add_process(tmp_path, 11, state="Z", threads=4)
    add_process(killed / "task", 11, state="Z")
    add_process(killed / "task", 12, state="S", group=f"{STEP}/user/task_0")
    add_process(killed / "task", 13, state="D", group=f"{STEP}/user/task_0", pending=0x100)
    add_process(killed / "task", 14, state="D", group=f"{STEP}/user/task_0")
    add_process(tmp_path, 20, state="Z", group=f"{STEP}/user/task_0")
    assert list_job_processes(tmp_path) == [
        JobProcess(11, 100, "12", "python", "D", 2000, is_killed=True, thread=13),
        JobProcess(20, 100, "12", "python", "Z", 2000),
    ]
    assert [process.is_over for process in list_job_processes(tmp_path)] == [False, True]


def test_a_signal_reaches_a_process_whose_main_thread_has_ended(tmp_path: Path) -> None:
    with start_without_main_thread() as process:
        add_step(tmp_path, os.getpid(), "slurmstepd: [12.0]")
        (tmp_path / str(process.pid)).symlink_to(f"/proc/{process.pid}")
        (listed,) = list_job_processes(tmp_path)
        assert (listed.pid, listed.job, listed.is_over) == (process.pid, "12", False)
        signal_jobs(signal.SIGKILL, ["12"], read=lambda: list_job_processes(tmp_path))
        assert process.wait() == -signal.SIGKILL


def test_a_signal_also_reaches_a_process_that_was_started_meanwhile() -> None:
    first, second, other = started = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    listed = [
        [process(first.pid, "7"), process(other.pid, "8")],
        [process(first.pid, "7"), process(second.pid, "7")],
        [process(first.pid, "7", "Z"), process(second.pid, "7")],
    ]
    try:
        assert signal_jobs(signal.SIGKILL, ["7"], read=lambda: listed.pop(0), sleep=lambda _: None) == {"7"}
        assert [first.wait(), second.wait()] == [-signal.SIGKILL] * 2
        assert (other.poll(), listed) == (None, [])
    finally:
        for helper in started:
            helper.kill()
            helper.wait()


def test_strays_are_jobs_that_slurmctld_does_not_list_here() -> None:
    assert find_strays({"9", "10", "11"}, {"10": "RUNNING", "12": "RUNNING"}) == ["9", "11"]
    assert find_strays((), {"10": "RUNNING"}) == []


def test_a_node_looks_for_drains_of_slurm_every_five_minutes(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    now = 1_000_000.0
    assert is_due(folder, now)
    os.utime(folder / "drain-looked-up", (now, now))
    assert not is_due(folder, now + LOOK_S - 1)
    assert is_due(folder, now + LOOK_S)
    # A clock that went back must not stop the looks.
    os.utime(folder / "drain-looked-up", (now + 9e9, now + 9e9))
    assert is_due(folder, now)


def process(pid: int, job: str, state: str = "S") -> JobProcess:
    return JobProcess(pid, 1, job, "sleep", state, 2000)
