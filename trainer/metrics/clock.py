"""Split the time of each step into data, compute, exposed communication, checkpoint and other; the parts add up."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

Phase = Literal["data", "compute", "checkpoint"]
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step, in total and by cause."""

    step: int
    total: float
    data: float
    compute: float
    communication: float
    checkpoint: float
    other: float
    source: str
    """The profile that the communication time is derived from."""

    @property
    def own(self) -> float:
        """The time without waiting for other ranks: a measure of this rank's own speed."""
        return self.total - self.communication


@dataclass
class _StepMarks:
    """The moments of a step at which the phase changed; the time after each belongs to the phase with its index."""

    step: int
    marks: list[Any]
    phases: list[str]


class Clock:
    """A clock that records when the phase of a step changes; time counts for the innermost phase only.

    On a CPU a mark is a time of the host's clock. On CUDA it is an event on the compute stream, so that a phase is
    measured in GPU time: a wait for data that overlaps with GPU work counts as nothing. Events are read one step late.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._stack: list[str] = ["other"]
        self._free: list[Any] = []
        self._finished: deque[_StepMarks] = deque()
        self._share = 0.0
        self._source = NOT_MEASURED
        self._current: _StepMarks | None = None

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        self._enter(name)
        self._stack.append(name)
        try:
            yield
        finally:
            self._stack.pop()
            self._enter(self._stack[-1])

    def end(self, step: int) -> None:
        """End the step; the next one begins at the same moment."""
        row = self._current or _StepMarks(0, [self._mark()], [self._stack[-1]])
        last = self._mark()
        row.marks.append(last)
        row.step = step
        self._finished.append(row)
        self._current = _StepMarks(0, [last], [self._stack[-1]])

    def restart(self) -> None:
        """Leave the time until the next phase, such as that of a rollback, out of all steps."""
        self._current = None

    def set_exposed_share(self, share: float, step: int) -> None:
        """Set the share of compute time that waits for communication, measured by the profile of `step`."""
        self._share = min(max(share, 0.0), 1.0)
        self._source = f"profile of step {step}"

    def take(self) -> list[StepTimes]:
        """Return every finished step except the newest, whose events may still be pending."""
        return self._read(leave=1)

    def drain(self) -> list[StepTimes]:
        return self._read(leave=0)

    def _enter(self, name: str) -> None:
        if self._current is None:
            self._current = _StepMarks(0, [self._mark()], [name])
            return
        self._current.marks.append(self._mark())
        self._current.phases.append(name)

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _read(self, leave: int) -> list[StepTimes]:
        times = []
        while len(self._finished) > leave:
            times.append(self._sum_up(self._finished.popleft()))
        return times

    def _sum_up(self, row: _StepMarks) -> StepTimes:
        seconds = {"data": 0.0, "compute": 0.0, "checkpoint": 0.0, "other": 0.0}
        if self._cuda:
            row.marks[-1].synchronize()
        for phase, start, end in zip(row.phases, row.marks, row.marks[1:], strict=False):
            seconds[phase] += start.elapsed_time(end) / 1000 if self._cuda else end - start
        if self._cuda:
            self._free += row.marks[:-1]  # the last mark is also the first of the next step
        communication = seconds["compute"] * self._share
        return StepTimes(
            step=row.step,
            total=sum(seconds.values()),
            data=seconds["data"],
            compute=seconds["compute"] - communication,
            communication=communication,
            checkpoint=seconds["checkpoint"],
            other=seconds["other"],
            source=self._source,
        )
