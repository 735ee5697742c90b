"""Everything a run says about itself: metrics of each rank, events, TensorBoard and the progress line of rank 0."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from trainer.config.schema import Config
from trainer.metrics.communication import Profile
from trainer.metrics.json_lines import JsonLines, keep_until
from trainer.metrics.progress import Progress
from trainer.metrics.tensorboard import TensorBoard


class Recorder:
    """`metrics/rank-00000.jsonl` on every rank; `events.jsonl`, `tensorboard/` and the progress line on rank 0.

    Nothing is opened before it is written to, so that events can be told before it is known where the run resumes.
    """

    def __init__(self, folder: str | Path, rank: int, config: Config, *, stream: TextIO | None = None) -> None:
        self._folder = Path(folder)
        self._rank = rank
        self._config = config
        self._step = 0
        self._failing = False
        self._lines: JsonLines | None = None
        self._profiles: JsonLines | None = None
        self._samples: JsonLines | None = None
        self._events: JsonLines | None = None
        self._board: TensorBoard | None = None
        self._progress = Progress(config.steps, stream or sys.stdout)

    def resume(self, step: int, world_size: int) -> None:
        """The run goes on after `step`: later lines are dropped, of ranks that no longer exist too.

        Events stay: they are the history of the run, including what was lost.
        """
        self._close_metrics()
        self._step = step
        for path in sorted((self._folder / "metrics").glob("*-*.jsonl")):
            if int(path.stem.split("-")[1]) % world_size == self._rank:
                keep_until(path, step)

    def record(self, step: int, values: Mapping[str, Any]) -> None:
        """A line of metrics. None values are left out: not measured is not zero."""
        known = {key: value for key, value in values.items() if value is not None}
        self._try(self._write_line, step, known)
        if self._rank:
            return
        if self._config.metrics.tensorboard:
            self._try(self._write_board, step, known)
        self._progress.show(step, known)

    def profile(self, profile: Profile) -> None:
        """The communication of a profiled step: a line of its own, and curves by collective and group."""
        self._try(self._write_profile, profile)
        if self._config.metrics.tensorboard and not self._rank:
            curves = {f"{row.collective} on {row.group or 'unknown'}": row for row in profile.traffic}
            values = {
                f"communication/{name}, {what}": getattr(row, what)
                for name, row in curves.items()
                for what in ("ms", "exposed_ms", "mb")
            }
            self._try(self._write_board, profile.step, values)

    def samples(self, step: int, ids: Sequence[int]) -> None:
        """Which samples this rank saw in a step, where the run keeps a record of that."""
        if self._config.metrics.sample_ids:
            self._try(self._write_samples, step, ids)

    def event(self, kind: str, **fields: Any) -> None:
        """Something that happened, with the time: started, joined, loaded, first_step, saved, stopped."""
        if not self._rank:
            self._try(self._write_event, kind, fields)

    def say(self, text: str) -> None:
        """A message for the person who watches, once for the whole run."""
        if not self._rank:
            self._progress.say(text)

    def close(self) -> None:
        self._close_metrics()
        self._progress.close()
        if self._events is not None:
            self._events.close()
            self._events = None

    def _try(self, write: Callable[..., None], *what: Any) -> None:
        """A full disk costs lines, never the run; it is said once each time the disk fills up."""
        try:
            write(*what)
        except OSError as error:
            if not self._failing:
                self._progress.say(f"metrics cannot be written to {self._folder}: {error}; training goes on without")
            self._failing = True
        else:
            self._failing = False

    def _write_line(self, step: int, known: dict[str, Any]) -> None:
        if self._lines is None:
            self._lines = JsonLines(self._folder / "metrics" / f"rank-{self._rank:05d}.jsonl")
        self._lines.append({"step": step, "time": round(time.time(), 3), **known})

    def _write_profile(self, profile: Profile) -> None:
        if self._profiles is None:
            self._profiles = JsonLines(self._folder / "metrics" / f"communication-{self._rank:05d}.jsonl")
        self._profiles.append(dataclasses.asdict(profile))

    def _write_samples(self, step: int, ids: Sequence[int]) -> None:
        if self._samples is None:
            self._samples = JsonLines(self._folder / "metrics" / f"samples-{self._rank:05d}.jsonl")
        self._samples.append({"step": step, "ids": list(ids)})

    def _write_board(self, step: int, known: dict[str, Any]) -> None:
        board = self._board or TensorBoard(self._folder / "tensorboard", self._step + 1)
        self._board = None  # after a torn record a reader stops: a failed write starts a new file
        board.add(step, {key: float(value) for key, value in known.items() if isinstance(value, int | float)})
        self._board, self._step = board, step

    def _write_event(self, kind: str, fields: dict[str, Any]) -> None:
        if self._events is None:
            self._events = JsonLines(self._folder / "events.jsonl")
        self._events.append({"time": round(time.time(), 3), "event": kind, **fields})

    def _close_metrics(self) -> None:
        for file in (self._lines, self._profiles, self._samples, self._board):
            if file is not None:
                file.close()
        self._lines = self._profiles = self._samples = self._board = None
