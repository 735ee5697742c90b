"""Run a command and end every process that it started.

Pulumi starts its plugins in process groups of their own, and they outlive it when it is killed. This small process
adopts them (child subreaper) and ends them when the command ends or the `muster` that started it is gone.
Run as a script: `python supervisor.py LOG COMMAND...`; its standard input is a pipe that only `muster` holds open.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

_SET_CHILD_SUBREAPER = 36


def main(log: str, *command: str) -> int:
    """Run a command with its output in the log file; return its exit code."""
    ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # The handlers do nothing, but ignoring the signals instead would make the command ignore them too.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    with Path(log).open("ab") as out:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    code = _follow(child)
    _end_descendants()
    return code


def _follow(child: subprocess.Popen[bytes]) -> int:
    """Wait for the command; pass on an interrupt for each byte from `muster`, and kill it when the pipe ends."""
    exited = os.pidfd_open(child.pid)
    while True:
        ready, _, _ = select.select([0, exited], [], [])
        if exited in ready:
            return child.wait()
        if os.read(0, 1):
            child.send_signal(signal.SIGINT)
            continue
        child.kill()
        return child.wait()


def _end_descendants() -> None:
    while children := _children(os.getpid()):
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except (ProcessLookupError, ChildProcessError):
                continue


def _children(pid: int) -> list[int]:
    """Return the direct children; those of a child that ends are adopted."""
    return [int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if _parent(stat) == pid]


def _parent(stat: Path) -> int:
    try:
        # The name in parentheses may hold any character; the parent's id is the second field after it.
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
