"""What a start leaves in the folder of its run before it is accepted, so that a refusal can take it back."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from trainer.checkpoint.folder import OF_RUN
from trainer.config.errors import ConfigError, ConfigProblem


class Trace:
    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._missing = [path for path in (folder, *folder.parents) if not path.exists()]
        self._events = folder / "events.jsonl"
        self._length = self._events.stat().st_size if self._events.is_file() else 0

    def make_folder(self) -> None:
        """The first rank, before it waits for the others: then it is known what was not there before."""
        if self._rank:
            return
        probe = self._folder / ".probe"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            message = f"{self._folder} cannot be written: {error.strerror}"
            raise ConfigError([ConfigProblem("run.folder", message, "name a folder that you may write to")]) from error

    def remove(self) -> None:
        """The first rank, for all: others may be ended as soon as it leaves."""
        if self._rank:
            return
        with suppress(OSError):
            self._cut_events()
        for path in (self._folder / OF_RUN, self._folder / "hang", *self._missing):
            with suppress(OSError):
                path.rmdir()

    def _cut_events(self) -> None:
        if not self._length:
            self._events.unlink(missing_ok=True)
            return
        with self._events.open("rb+") as file:
            file.truncate(self._length)
