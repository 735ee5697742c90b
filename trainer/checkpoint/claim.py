"""Hold a run folder for a job until its ranks take it over, so that the job script may change files in it.

python -S -m trainer.checkpoint.claim FOLDER PARENT [ENDED_JOB ...]

It prints the number of a process that stays in the background, and exits with 0; or it prints why the folder cannot be
used, and exits with 1. The process gives the folder back when it gets SIGTERM, or when the process PARENT has ended.
ENDED_JOB is a job that has ended, according to Slurm. Standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TextIO

from trainer.checkpoint.lock_owner import JOB_SCRIPT, name_self, read_start
from trainer.checkpoint.run_lock import FolderInUse, RunLock

_PARENT_POLL_S = 1.0


def main(arguments: list[str]) -> int:
    """Claim the folder and return the exit status; the holder is a child of this process."""
    folder, parent, *ended_jobs = arguments
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _close_stream(sys.stdout)
        _hold(Path(folder), int(parent), tuple(ended_jobs), writer)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        problem = answer.read()
    print(problem or pid)
    return 1 if problem else 0


def _hold(folder: Path, parent: int, ended_jobs: tuple[str, ...], answer: int) -> None:
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    try:
        lock = RunLock.take(folder, name_self(launcher=JOB_SCRIPT), ended_jobs, _say)
    except FolderInUse as error:
        os.write(answer, f"{folder} is {error}: wait for it, or stop it (`{error.owner.stop_command}`)".encode())
        return
    except OSError as error:
        os.write(answer, f"cannot write to {folder}: {error.strerror}".encode())
        return
    _close_stream(sys.stderr)
    os.close(answer)
    # The ranks of the job have taken over. If it was anyone else, they find out.
    lock.on_lost(ended.set)
    while not ended.wait(_PARENT_POLL_S) and read_start(parent):
        pass
    lock.release()


def _close_stream(stream: TextIO) -> None:
    """Write to nowhere instead: a caller that reads the output waits until nobody can write to it."""
    os.dup2(os.open(os.devnull, os.O_RDWR), stream.fileno())


def _say(text: str) -> None:
    print(f"train: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
