"""Trace a few steps of a running job with torch's profiler, and record the GPU's memory during them."""

from __future__ import annotations

import gzip
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from trainer.life.trace_request import TraceRequest

TRACES_FOLDER = "traces"
_MAX_MEMORY_EVENTS = 200_000


class Tracer:
    """A tracer of the steps that a person asks for.

    It writes `traces/step-00000120/rank-00000.json.gz`, for chrome://tracing or https://ui.perfetto.dev, and on a GPU
    `rank-00000.memory.pickle`, for https://docs.pytorch.org/memory_viz.
    """

    def __init__(self, folder: Path, rank: int, device: torch.device, say: Callable[[str], None]) -> None:
        self._folder = folder / TRACES_FOLDER
        self._rank = rank
        self._device = device
        self._say = say
        self._steps_left = 0
        self._first_step = 0
        self._profile: Any = None
        self._compressions: list[threading.Thread] = []

    @property
    def is_active(self) -> bool:
        """Whether the next step is traced on this rank."""
        return self._steps_left > 0

    def begin(self, request: TraceRequest, next_step: int) -> None:
        """Trace the next steps, if this rank is one of those that the request asks for."""
        if self.is_active:
            self._say(f"a trace from step {self._first_step} on is under way; the request is ignored")
        elif self._rank < request.ranks:
            self._steps_left, self._first_step = request.steps, next_step

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Run a step, and trace it if it was asked for."""
        if not self.is_active:
            yield
            return
        if self._profile is None:
            self._start()
        from torch.profiler import record_function  # noqa: PLC0415 - slow to import, and rarely needed

        with record_function(f"step {step}"):
            yield
        self._steps_left -= 1
        if not self._steps_left:
            self._finish(step)

    def close(self) -> None:
        """Write a trace that is under way at the end of the run, and wait until all traces are compressed."""
        if self._profile is not None:
            self._finish(self._first_step)
        for thread in self._compressions:
            thread.join()

    def _start(self) -> None:
        from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415 - slow to import, and rarely needed

        is_cuda = self._device.type == "cuda"
        if is_cuda:
            torch.cuda.memory._record_memory_history(max_entries=_MAX_MEMORY_EVENTS)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
        self._profile = profile(activities=activities, record_shapes=True, profile_memory=True)
        self._profile.start()

    def _finish(self, last_step: int) -> None:
        profile, self._profile, self._steps_left = self._profile, None, 0
        folder = self._folder / f"step-{self._first_step:08d}"
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        profile.stop()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            plain = folder / f"rank-{self._rank:05d}.json"
            profile.export_chrome_trace(str(plain))
            if self._device.type == "cuda":
                torch.cuda.memory._dump_snapshot(str(folder / f"rank-{self._rank:05d}.memory.pickle"))
        except OSError as error:
            self._say(f"the trace cannot be written to {folder}: {error}; training continues")
            return
        finally:
            if self._device.type == "cuda":
                torch.cuda.memory._record_memory_history(enabled=None)
        message = f"trace of steps {self._first_step} to {last_step} in {folder}"
        # Compressing takes longer than a step, and the other ranks wait for this one.
        thread = threading.Thread(target=self._compress, args=(plain, message), daemon=True)
        thread.start()
        self._compressions.append(thread)

    def _compress(self, plain: Path, message: str) -> None:
        packed = plain.with_name(f"{plain.name}.gz")
        part = plain.with_name(f".{packed.name}.part")
        try:
            with plain.open("rb") as source, gzip.open(part, "wb", compresslevel=1) as target:
                shutil.copyfileobj(source, target)
            part.rename(packed)
            plain.unlink()
        except OSError as error:
            self._say(f"{plain} cannot be compressed: {error}")
        self._say(message)
