"""Create and lock the folder of a run, and restore its earlier state if the run is rejected."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path

from trainer.checkpoint.fence import Fence
from trainer.checkpoint.folder import CHECKPOINTS_FOLDER
from trainer.checkpoint.group import RankGroup
from trainer.checkpoint.run_lock import FolderInUse, RunLock
from trainer.config.errors import ConfigError, ConfigProblem, FolderInUseError


class RunFolder:
    """The folder of a run and its state before this start; only rank 0 locks it and changes anything in it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._missing = [path for path in (folder, *folder.parents) if not path.exists()]
        self._events = folder / "events.jsonl"
        self._events_size = 0
        self._lock: RunLock | None = None
        self._refusal: ConfigProblem | None = None
        """Why rank 0 could not lock the folder."""

    @property
    def is_ours(self) -> bool:
        """Whether this run may write to the folder; ranks other than 0 learn by `agree` that it may not."""
        return self._refusal is None and (self._lock is None or self._lock.confirm())

    @property
    def fence(self) -> Fence:
        """The proof that this run owns the folder, on rank 0."""
        return self._lock.fence if self._lock else Fence()

    def create(self) -> None:
        """Create the folder, check that it can be written to, and lock it.

        Rank 0 does this before it joins the others, so that none of them has created a missing folder yet. If another
        run uses the folder, `agree` reports it, because the other ranks have to learn that.
        """
        if self._rank:
            return
        probe = self._folder / ".probe"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"")
            probe.unlink(missing_ok=True)
            self._lock = RunLock.take(self._folder, say=_say)
            self._events_size = self._events.stat().st_size if self._events.is_file() else 0
        except FolderInUse as error:
            fix = f"wait for it, stop it (`{error.owner.stop_command}`), or use another run.folder"
            self._refusal = ConfigProblem("run.folder", f"{self._folder} is {error}", fix)
        except OSError as error:
            message = f"{self._folder} cannot be written: {error.strerror}"
            raise ConfigError([ConfigProblem("run.folder", message, "use a folder that you may write to")]) from error

    def agree(self, group: RankGroup) -> None:
        """Raise FolderInUseError on all ranks if rank 0 could not lock the folder."""
        problem = group.run_on_first(lambda: None if self._refusal is None else astuple(self._refusal))
        if problem is not None:
            self._refusal = ConfigProblem(*problem)
            raise FolderInUseError([self._refusal])

    def on_lost(self, call: Callable[[], None]) -> None:
        """Call this on rank 0 if another run takes over the folder."""
        if self._lock is not None:
            self._lock.on_lost(call)

    def release(self) -> None:
        """Give the folder back."""
        if self._lock is not None:
            self._lock.release()

    def restore(self) -> None:
        """Remove everything that this start created: a rejected run leaves no trace.

        Rank 0 does this for all ranks, which may be killed as soon as it exits.
        """
        if self._rank or not self.is_ours:
            return
        if self._lock is not None:
            # Before the release: afterwards, the events may be those of another run.
            with suppress(OSError):
                self._truncate_events()
            self._lock.release(leave_no_trace=self._lock.fence.epoch == 1)
            self._lock = None
        for path in (self._folder / CHECKPOINTS_FOLDER, self._folder / "hang", *self._missing):
            with suppress(OSError):
                path.rmdir()

    def _truncate_events(self) -> None:
        if not self._events_size:
            self._events.unlink(missing_ok=True)
            return
        with self._events.open("rb+") as file:
            file.truncate(self._events_size)


def _say(text: str) -> None:
    print(f"trainer: {text}", file=sys.stderr, flush=True)
