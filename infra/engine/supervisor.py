"""Runs one command and leaves no process of it behind.

Pulumi starts its plugins in process groups of their own, and they outlive it when it is killed. This small process
adopts them (child subreaper), and ends all of them when the command ends or the `muster` that started it is gone.
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
    ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Python's own handlers are needed: an ignored signal would be ignored by the command too.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    with Path(log).open("ab") as out:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    code = _follow(child)
    _end_descendants()
    return code


def _follow(child: subprocess.Popen[bytes]) -> int:
    """Each byte from `muster` is one interrupt to pass on; the end of the pipe is the end of `muster`."""
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
    """Direct ones; those of a child that ends become ours."""
    return [int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if _parent(stat) == pid]


def _parent(stat: Path) -> int:
    try:
        # The name in brackets may hold anything; the parent's id is the second field after it.
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
