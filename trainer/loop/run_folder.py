"""Create the folder of a run, and restore its earlier state if the run is rejected."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from trainer.checkpoint.folder import CHECKPOINTS_FOLDER
from trainer.config.errors import ConfigError, ConfigProblem


class RunFolder:
    """The folder of a run and its state before this start; only rank 0 changes anything in it."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._missing = [path for path in (folder, *folder.parents) if not path.exists()]
        self._events = folder / "events.jsonl"
        self._events_size = self._events.stat().st_size if self._events.is_file() else 0

    def create(self) -> None:
        """Create the folder and check that it can be written to.

        Rank 0 does this before it joins the others, so that none of them has created a missing folder yet.
        """
        if self._rank:
            return
        probe = self._folder / ".probe"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            message = f"{self._folder} cannot be written: {error.strerror}"
            raise ConfigError([ConfigProblem("run.folder", message, "use a folder that you may write to")]) from error

    def restore(self) -> None:
        """Remove everything that this start created: a rejected run leaves no trace.

        Rank 0 does this for all ranks, which may be killed as soon as it exits.
        """
        if self._rank:
            return
        with suppress(OSError):
            self._truncate_events()
        for path in (self._folder / CHECKPOINTS_FOLDER, self._folder / "hang", *self._missing):
            with suppress(OSError):
                path.rmdir()

    def _truncate_events(self) -> None:
        if not self._events_size:
            self._events.unlink(missing_ok=True)
            return
        with self._events.open("rb+") as file:
            file.truncate(self._events_size)
