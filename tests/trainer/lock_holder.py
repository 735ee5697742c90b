"""A process that takes a run folder and writes to it, as its standard input says, line by line. Standard library only.

python -S -m tests.trainer.lock_holder BEAT_S STALE_S

    take FOLDER          prints "epoch N", "epoch N after watching" its last owner, or "refused ..."
    save STEP            writes a checkpoint with the writer's own code; prints the result
    stop_and_save STEP   likewise, but SIGSTOP comes when it has asked the lock for the last time and before it renames
    remove STEP          removes later checkpoints
    lost                 waits until another process has taken over
    release
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from trainer.checkpoint import folder, retention, run_lock
from trainer.checkpoint.fence import FolderLost
from trainer.checkpoint.job import SaveJob
from trainer.checkpoint.run_lock import FolderInUse, RunLock
from trainer.checkpoint.writer import save


class Holder:
    """The commands; each returns the answer to print."""

    def __init__(self) -> None:
        self.lock: RunLock | None = None
        self.path = Path()

    def take(self, where: str) -> str:
        self.path = Path(where) / "checkpoints"
        notes: list[str] = []
        try:
            self.lock = RunLock.take(Path(where), say=notes.append)
        except (FolderInUse, OSError) as error:
            return f"refused {error}"
        self.path.mkdir(exist_ok=True)
        folder.remove_leftovers(self.path, epoch=self.lock.fence.epoch)
        return f"epoch {self.lock.fence.epoch}{' after watching' * bool(notes)}"

    def save(self, step: str) -> str:
        assert self.lock is not None
        content = f"{os.getpid()} {step}".encode()
        job = SaveJob(
            directory=str(self.path),
            step=int(step),
            token=f"e{self.lock.fence.epoch}-{os.getpid():08x}-{step}",
            rank=0,
            world_size=1,
            size=len(content),
            texts={folder.INDEX: "{}", folder.STATE: "{}"},
            metric=None,
            keep=1,
            best="",
            fence=self.lock.fence,
        )
        result = save(job, memoryview(content), set())
        return f"{result['kind']} {result['reason']}"

    def stop_and_save(self, step: str) -> str:
        is_armed = True

        def stop(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal is_armed
            if is_armed and event == "os.rename" and str(arguments[0]).endswith(folder.PARTIAL):
                is_armed = False
                os.kill(os.getpid(), signal.SIGSTOP)

        sys.addaudithook(stop)
        return self.save(step)

    def remove(self, step: str) -> str:
        assert self.lock is not None
        try:
            return f"removed {retention.remove_after(self.path, int(step), self.lock.fence)}"
        except FolderLost as error:
            return f"failed {error}"

    def lost(self) -> str:
        assert self.lock is not None
        lost = threading.Event()
        self.lock.on_lost(lost.set)
        return "lost" if lost.wait(60) else "held"

    def release(self) -> str:
        assert self.lock is not None
        self.lock.release()
        return "released"


if __name__ == "__main__":
    run_lock.BEAT_S, run_lock.STALE_S = float(sys.argv[1]), float(sys.argv[2])
    holder = Holder()
    for line in sys.stdin:
        command, *arguments = line.split()
        print(getattr(holder, command)(*arguments), flush=True)
