"""Where a step's time goes: data, compute, exposed communication, checkpoint and the rest; the parts add up."""

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
class Split:
    """Seconds of one step. `source` says where the communication figure comes from."""

    step: int
    total: float
    data: float
    compute: float
    communication: float
    checkpoint: float
    other: float
    source: str

    @property
    def own(self) -> float:
        """What this rank itself took: waiting for others is taken out, so it tells ranks apart."""
        return self.total - self.communication


@dataclass
class _Row:
    """One step as a row of marks; the time after each belongs to the phase named with it."""

    step: int
    marks: list[Any]
    phases: list[str]


class Clock:
    """Marks the moments at which the phase changes; the innermost phase owns the time, so nothing counts twice.

    On the CPU a mark is the host's clock. On CUDA it is an event on the compute stream: the time between two of them is
    what the phase cost the GPU, so a wait for data that the GPU does not notice counts as nothing. Events are read one
    step late.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._stack: list[str] = ["other"]
        self._free: list[Any] = []
        self._finished: deque[_Row] = deque()
        self._share = 0.0
        self._source = NOT_MEASURED
        self._current: _Row | None = None

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
        """The step is over; the next one begins at the same moment."""
        row = self._current or _Row(0, [self._mark()], [self._stack[-1]])
        last = self._mark()
        row.marks.append(last)
        row.step = step
        self._finished.append(row)
        self._current = _Row(0, [last], [self._stack[-1]])

    def restart(self) -> None:
        """What runs until the next phase is part of no step: a load, a rollback."""
        self._current = None

    def exposed(self, share: float, step: int) -> None:
        """The share of compute time that waits for communication, as of this profiled step; holds until the next."""
        self._share = min(max(share, 0.0), 1.0)
        self._source = f"profile of step {step}"

    def take(self) -> list[Split]:
        """Every finished step but the newest, whose events may not have come yet."""
        return self._read(keep=1)

    def drain(self) -> list[Split]:
        return self._read(keep=0)

    def _enter(self, name: str) -> None:
        if self._current is None:
            self._current = _Row(0, [self._mark()], [name])
            return
        self._current.marks.append(self._mark())
        self._current.phases.append(name)

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _read(self, keep: int) -> list[Split]:
        splits = []
        while len(self._finished) > keep:
            splits.append(self._split(self._finished.popleft()))
        return splits

    def _split(self, row: _Row) -> Split:
        seconds = {"data": 0.0, "compute": 0.0, "checkpoint": 0.0, "other": 0.0}
        if self._cuda:
            row.marks[-1].synchronize()
        for phase, begin, end in zip(row.phases, row.marks, row.marks[1:], strict=False):
            seconds[phase] += begin.elapsed_time(end) / 1000 if self._cuda else end - begin
        if self._cuda:
            self._free += row.marks[:-1]  # the last mark is the next step's first
        communication = seconds["compute"] * self._share
        return Split(
            step=row.step,
            total=sum(seconds.values()),
            data=seconds["data"],
            compute=seconds["compute"] - communication,
            communication=communication,
            checkpoint=seconds["checkpoint"],
            other=seconds["other"],
            source=self._source,
        )
