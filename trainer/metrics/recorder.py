"""The records of a run: metrics of each rank, and events, progress, TensorBoard files and trackers of rank 0."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from trainer.config.schema import Config
from trainer.metrics.communication import Profile
from trainer.metrics.json_lines import JsonLines, drop_after
from trainer.metrics.progress import Progress
from trainer.metrics.progress_file import ProgressFile
from trainer.metrics.tensorboard import TensorBoard
from trainer.metrics.timeline_file import write_timeline
from trainer.metrics.trackers import BackgroundTracker, close_trackers, make_trackers


class Recorder:
    """A writer of `metrics/rank-00000.jsonl` on every rank, and of events, TensorBoard files and progress on rank 0.

    A file is opened when it is first written to, so that events can be recorded before the resume point is known.
    """

    def __init__(self, folder: str | Path, rank: int, config: Config, *, stream: TextIO | None = None) -> None:
        self._folder = Path(folder)
        self._rank = rank
        self._config = config
        self._step = 0
        self._is_failing = False
        self._lines: JsonLines | None = None
        self._profiles: JsonLines | None = None
        self._samples: JsonLines | None = None
        self._evaluations: JsonLines | None = None
        self._texts: JsonLines | None = None
        self._events: JsonLines | None = None
        self._board: TensorBoard | None = None
        self._progress = Progress(config.steps, stream or sys.stdout)
        self._progress_file = ProgressFile(self._folder, config.name, config.steps)
        self._trackers: list[BackgroundTracker] = []
        self._outcome = ""

    def open_trackers(self, config: Config) -> None:
        """Start or continue the run in Weights & Biases and MLflow, with its resolved settings."""
        if not self._rank:
            self._trackers = make_trackers(config, self._folder, self.say)

    def resume(self, step: int, world_size: int) -> None:
        """Remove the lines after `step`, which the resumed run writes again, even those of ranks that no longer exist.

        Events are not removed: they are the history of the run, including lost work.
        """
        self._close_metrics()
        self._step = step
        for path in sorted((self._folder / "metrics").glob("*-*.jsonl")):
            if int(path.stem.split("-")[1]) % world_size == self._rank:
                drop_after(path, step)
        if not self._rank:
            self._try(self._progress_file.start, step)

    def record(self, step: int, values: Mapping[str, Any]) -> None:
        """Write a line of metrics; values that are None were not measured and are left out."""
        measured = {key: value for key, value in values.items() if value is not None}
        self._try(self._write_line, step, measured)
        if self._rank:
            return
        if self._config.metrics.tensorboard:
            self._try(self._write_board, step, measured)
        self._progress.show(step, measured)
        self._try(self._progress_file.update, step, measured, self._progress.seconds_left)
        for tracker in self._trackers:
            tracker.log(step, measured)

    def profile(self, profile: Profile) -> None:
        """Write the communication of a profiled step as a line, a timeline, and as TensorBoard curves."""
        self._try(self._write_profile, profile)
        self._try(write_timeline, self._folder / "metrics", self._rank, profile)
        if self._config.metrics.tensorboard and not self._rank:
            curves = {f"{row.collective} on {row.group or 'unknown'}": row for row in profile.traffic}
            values = {
                f"communication/{name}, {quantity}": getattr(row, quantity)
                for name, row in curves.items()
                for quantity in ("ms", "exposed_ms", "mb")
            }
            self._try(self._write_board, profile.step, values)

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Write the result of an evaluation as a line, an event and TensorBoard curves, on rank 0."""
        if self._rank:
            return
        self._try(self._write_evaluation, step, values)
        self.event("evaluated", step=step, **values)
        curves = {f"evaluation/{name}": value for name, value in values.items()}
        if self._config.metrics.tensorboard:
            self._try(self._write_board, step, curves)
        for tracker in self._trackers:
            tracker.log(step, curves)

    def texts(self, step: int, texts: Mapping[str, str]) -> None:
        """Write how the model continues each prompt, on rank 0."""
        if not self._rank:
            self._try(self._write_texts, step, texts)

    def samples(self, step: int, ids: Sequence[int]) -> None:
        """Write which samples this rank used in a step, if `metrics.sample_ids` is set."""
        if self._config.metrics.sample_ids:
            self._try(self._write_samples, step, ids)

    def event(self, kind: str, **fields: Any) -> None:
        """Write an event with its time, such as started, joined, loaded or first_step."""
        if not self._rank:
            self._try(self._write_event, kind, fields)

    def end(self, outcome: str, reason: str, step: int) -> None:
        """Write how the run ended."""
        self._outcome = outcome
        self.event("ended", outcome=outcome, reason=reason, step=step)
        if not self._rank:
            self._try(self._progress_file.end, step, outcome, reason)

    def say(self, text: str) -> None:
        """Print a message for the user, once per run and not once per rank."""
        if not self._rank:
            self._progress.say(text)

    def close(self) -> None:
        """Close all files, and let the trackers send their last metrics."""
        trackers, self._trackers = self._trackers, []
        close_trackers(trackers, self._outcome)
        self._close_metrics()
        self._progress.close()
        if self._events is not None:
            self._events.close()
            self._events = None

    def _try(self, write: Callable[..., None], *arguments: Any) -> None:
        """Write, but do not end the run if writing fails; print a message for the first failure in a row."""
        try:
            write(*arguments)
        except OSError as error:
            if not self._is_failing:
                self._progress.say(f"cannot write metrics to {self._folder}: {error}; training continues without them")
            self._is_failing = True
        else:
            self._is_failing = False

    def _write_line(self, step: int, values: dict[str, Any]) -> None:
        if self._lines is None:
            self._lines = JsonLines(self._folder / "metrics" / f"rank-{self._rank:05d}.jsonl")
        self._lines.append({"step": step, "time": round(time.time(), 3), **values})

    def _write_profile(self, profile: Profile) -> None:
        if self._profiles is None:
            self._profiles = JsonLines(self._folder / "metrics" / f"communication-{self._rank:05d}.jsonl")
        line = dataclasses.asdict(dataclasses.replace(profile, events=[]))
        del line["events"]
        self._profiles.append(line)

    def _write_evaluation(self, step: int, values: Mapping[str, float]) -> None:
        if self._evaluations is None:
            path = self._folder / "metrics" / f"evaluation-{self._rank:05d}.jsonl"
            # An attempt that was killed before its first save has evaluated the step from which this one resumes too.
            drop_after(path, step - 1)
            self._evaluations = JsonLines(path)
        self._evaluations.append({"step": step, "time": round(time.time(), 3), **values})

    def _write_texts(self, step: int, texts: Mapping[str, str]) -> None:
        if self._texts is None:
            path = self._folder / "metrics" / f"texts-{self._rank:05d}.jsonl"
            drop_after(path, step - 1)  # as with evaluations
            self._texts = JsonLines(path)
        self._texts.append({"step": step, "texts": [{"prompt": key, "text": value} for key, value in texts.items()]})

    def _write_samples(self, step: int, ids: Sequence[int]) -> None:
        if self._samples is None:
            self._samples = JsonLines(self._folder / "metrics" / f"samples-{self._rank:05d}.jsonl")
        self._samples.append({"step": step, "ids": list(ids)})

    def _write_board(self, step: int, values: dict[str, Any]) -> None:
        board = self._board or TensorBoard(self._folder / "tensorboard", self._step + 1)
        self._board = None  # readers stop at an incomplete record, so a failed write starts a new file
        board.add(step, {key: float(value) for key, value in values.items() if isinstance(value, int | float)})
        self._board, self._step = board, step

    def _write_event(self, kind: str, fields: dict[str, Any]) -> None:
        if self._events is None:
            self._events = JsonLines(self._folder / "events.jsonl")
        self._events.append({"time": round(time.time(), 3), "event": kind, **fields})

    def _close_metrics(self) -> None:
        for file in (self._lines, self._profiles, self._samples, self._evaluations, self._texts, self._board):
            if file is not None:
                file.close()
        self._lines = self._profiles = self._samples = self._evaluations = self._texts = self._board = None
