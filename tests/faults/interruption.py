"""Kill a running command and everything it started, at a chosen point."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import docker

from tests.harness import Stack, wait_until

Point = Callable[[Stack], bool]


def kill_at(stack: Stack, description: str, point: Point, *command: str) -> None:
    """Start a command (`up` by default) and kill it as soon as `point` holds."""
    clear_progress(stack)
    process = stack.start(*(command or ("up",)))
    wait_until(lambda: point(stack) or process.poll() is not None, description)
    assert process.poll() is None, f"the command ended before: {description}"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not leftover_processes(stack), "no process of the killed command is left")


def containers(stack: Stack) -> int:
    """Return the number of the stack's containers, running or not."""
    filters = {"label": f"muster.cluster={stack.cluster}"}
    return len(docker.from_env().containers.list(all=True, filters=filters, ignore_removed=True))


def progress(stack: Stack) -> str:
    """Return the progress file of the last `up`."""
    log = stack.home / stack.name / "progress.jsonl"
    return log.read_text() if log.exists() else ""


def clear_progress(stack: Stack) -> None:
    """Remove the progress of an earlier `up`, which would look like that of the next."""
    (stack.home / stack.name / "progress.jsonl").unlink(missing_ok=True)


def lose_state(stack: Stack) -> None:
    """Delete the state and all other files that `up` wrote."""
    for folder in (stack.home / "state", stack.home / stack.name):
        shutil.rmtree(folder)


def leftover_processes(stack: Stack) -> list[str]:
    """Return the ids of the processes with this stack's home in their environment."""
    pids = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if f"MUSTER_HOME={stack.home}".encode() in environ and int(pid) != os.getpid():
            pids.append(pid)
    return pids
