"""Only one command at a time can change a stack, and a killed command leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from infra.engine import lock
from infra.engine.process import process_lives
from infra.engine.stop import Stop
from infra.home import Home, StackHome

SUPERVISOR = Path(lock.__file__).with_name("supervisor.py")
GRANDCHILDREN = "setsid sleep 300 & setsid sh -c 'sleep 300 & wait' & "


@pytest.fixture
def stack(tmp_path: Path) -> StackHome:
    return Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def processes_with(mark: str) -> list[int]:
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"MARK={mark}".encode() in (folder / "environ").read_bytes() and process_lives(int(folder.name)):
                pids.append(int(folder.name))
        except OSError:
            continue
    return pids


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def supervise(tmp_path: Path, mark: str, script: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-IS", str(SUPERVISOR), str(tmp_path / "log"), "sh", "-c", script],
        stdin=subprocess.PIPE,
        env={**os.environ, "MARK": mark},
        start_new_session=True,
    )


def test_second_command_fails_and_names_the_first_and_its_start_time(stack: StackHome) -> None:
    before = datetime.now()
    with lock.held(stack, "up", wait=False, say=print):
        after = datetime.now()
        with pytest.raises(Stop) as stop, lock.held(stack, "teardown", wait=False, say=print):
            pass
    assert str(os.getpid()) in stop.value.what
    assert "`muster up`" in stop.value.what
    assert any(f"{moment:%H:%M}" in stop.value.what for moment in (before, after))
    assert stop.value.fix == (
        "wait for it, then repeat your command; if that is `up`, `make up WAIT=1 STACK=s` waits for you"
    )


def test_second_command_can_wait(stack: StackHome, tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from infra.engine import lock; from infra.home import Home\n"
            f"with lock.held(Home.of({{'MUSTER_HOME': {str(tmp_path)!r}}}).stack('s'), 'up', wait=False, say=print):\n"
            "    print('held', flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    messages: list[str] = []
    end = holder.stdin.close

    def say(message: str) -> None:
        messages.append(message)
        end()

    with lock.held(stack, "up", wait=True, say=say):
        assert holder.wait() == 0
    assert len(messages) == 1
    assert str(holder.pid) in messages[0]


def test_zombie_counts_as_dead() -> None:
    child = subprocess.Popen(["true"])
    assert wait_until(lambda: not process_lives(child.pid))
    child.wait()


def test_only_locks_of_dead_processes_of_this_machine_are_stale() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    now = datetime.now(UTC)
    dead, alive = lock.Holder(ended.pid, now, hostname="here"), lock.Holder(os.getpid(), now, hostname="here")
    assert lock.stale([dead], "here")
    assert not lock.stale([dead], "elsewhere")
    assert not lock.stale([dead, alive], "here")
    assert not lock.stale([], "here")


def test_locks_of_pulumi_are_read(stack: StackHome) -> None:
    stack.pulumi_locks.mkdir(parents=True)
    body = '{"pid":30380,"username":"me","hostname":"vm","timestamp":"2026-11-15T03:14:13.12409786Z"}'
    (stack.pulumi_locks / "a.json").write_text(body)
    (stack.pulumi_locks / "a.json.attrs").write_text("{}")
    (stack.pulumi_locks / "half.json").write_text('{"pid":')
    assert [(h.pid, h.hostname, h.since.second) for h in lock.pulumi_holders(stack)] == [(30380, "vm", 13)]


@pytest.mark.parametrize("code", [0, 3])
def test_supervisor_passes_on_output_and_exit_code(tmp_path: Path, code: int) -> None:
    process = supervise(tmp_path, f"code-{tmp_path.name}", f"echo output; exit {code}")
    assert process.wait() == code
    assert (tmp_path / "log").read_text() == "output\n"


def test_processes_left_by_a_command_are_ended(tmp_path: Path) -> None:
    mark = f"ends-{tmp_path.name}"
    assert supervise(tmp_path, mark, GRANDCHILDREN + "exit 0").wait() == 0
    assert processes_with(mark) == []


def test_all_processes_end_when_the_caller_is_gone(tmp_path: Path) -> None:
    mark = f"gone-{tmp_path.name}"
    process = supervise(tmp_path, mark, GRANDCHILDREN + "wait")
    assert wait_until(lambda: len(processes_with(mark)) >= 5)
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
    assert processes_with(mark) == []


def test_all_processes_end_when_the_command_is_killed(tmp_path: Path) -> None:
    mark = f"kill-{tmp_path.name}"
    process = supervise(tmp_path, mark, "echo started; " + GRANDCHILDREN + "wait")
    assert wait_until(lambda: len(processes_with(mark)) >= 5)
    (command,) = [pid for pid in processes_with(mark) if parent(pid) == process.pid]
    os.kill(command, signal.SIGKILL)
    assert process.wait() == 256 - signal.SIGKILL
    assert processes_with(mark) == []


def test_interrupt_is_passed_on_to_the_command(tmp_path: Path) -> None:
    script = "trap 'echo interrupted; exit 7' INT; echo ready; while :; do sleep 0.05; done"
    process = supervise(tmp_path, f"int-{tmp_path.name}", script)
    assert wait_until(lambda: (tmp_path / "log").exists() and (tmp_path / "log").read_text() == "ready\n")
    assert process.stdin is not None
    process.stdin.write(b".")
    process.stdin.flush()
    assert process.wait() == 7
    assert (tmp_path / "log").read_text() == "ready\ninterrupted\n"
