"""Trace a few steps of a running job with torch's profiler, and record the GPU's memory during them."""

from __future__ import annotations

import gzip
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from trainer.life.trace_request import TraceRequest
from trainer.metrics.flight_recorder import wait_for_gloo

TRACES_FOLDER = "traces"
_MAX_MEMORY_EVENTS = 200_000
_WRITE_TIMEOUT_S = 600.0
_COMPRESS_TIMEOUT_S = 60.0


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
        self._last_step = 0
        self._profile: Any = None
        self._started_ns = 0
        self._compressions: list[threading.Thread] = []

    @property
    def is_active(self) -> bool:
        """Whether the next step is traced on this rank."""
        return self._steps_left > 0

    def begin(self, request: TraceRequest, next_step: int) -> None:
        """Trace the next steps, if this rank is one of those that the request asks for."""
        if self._first_step <= next_step <= self._last_step:
            self._say(f"a trace of steps {self._first_step} to {self._last_step} is under way; the request is ignored")
            return
        self._first_step, self._last_step = next_step, next_step + request.steps - 1
        if self._rank < request.ranks:
            self._steps_left = request.steps

    def find_limit_s(self, step: int) -> float | None:
        """Return the time limit of a step in which a trace is written, or waited for; None for any other step."""
        return _WRITE_TIMEOUT_S if self._last_step and step - self._last_step in (0, 1) else None

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
            self._finish()

    def close(self) -> None:
        """Write a trace that is under way at the end of the run, and wait a while until all traces are compressed."""
        if self._profile is not None:
            self._last_step -= self._steps_left
            self._finish()
        deadline = time.monotonic() + _COMPRESS_TIMEOUT_S
        for thread in self._compressions:
            thread.join(max(deadline - time.monotonic(), 0.0))
        if any(thread.is_alive() for thread in self._compressions):
            self._say(f"a trace was not written to {self._folder} within {_COMPRESS_TIMEOUT_S:g} s and is lost")

    def _start(self) -> None:
        from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415 - slow to import, and rarely needed

        is_cuda = self._device.type == "cuda"
        if is_cuda:
            torch.cuda.memory._record_memory_history(max_entries=_MAX_MEMORY_EVENTS)
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
        self._profile = profile(activities=activities, record_shapes=True, profile_memory=True)
        self._started_ns = time.time_ns()
        self._profile.start()

    def _finish(self) -> None:
        profile, self._profile, self._steps_left = self._profile, None, 0
        folder = self._folder / f"step-{self._first_step:08d}"
        is_cuda = self._device.type == "cuda"
        if is_cuda:
            torch.cuda.synchronize(self._device)
        wait_for_gloo(self._started_ns)
        profile.stop()
        plain: Path | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # First to a local disk: torch blocks the whole process while it writes.
            with tempfile.NamedTemporaryFile(suffix=".json", delete=False) as file:
                plain = Path(file.name)
            profile.export_chrome_trace(str(plain))
            if is_cuda:
                torch.cuda.memory._dump_snapshot(str(folder / f"rank-{self._rank:05d}.memory.pickle"))
        except OSError as error:
            self._say(f"the trace cannot be written to {folder}: {error}; training continues")
            if plain is not None:
                plain.unlink(missing_ok=True)
            return
        finally:
            if is_cuda:
                torch.cuda.memory._record_memory_history(enabled=None)
        message = f"trace of steps {self._first_step} to {self._last_step} in {folder}"
        # Compressing takes longer than a step, and the other ranks wait for this one.
        packed = folder / f"rank-{self._rank:05d}.json.gz"
        thread = threading.Thread(target=self._compress, args=(plain, packed, message), daemon=True)
        thread.start()
        self._compressions.append(thread)

    def _compress(self, plain: Path, packed: Path, message: str) -> None:
        part = packed.with_name(f".{packed.name}.part")
        try:
            with plain.open("rb") as source, gzip.open(part, "wb", compresslevel=1) as target:
                shutil.copyfileobj(source, target)
            part.rename(packed)
            self._say(message)
        except OSError as error:
            self._say(f"the trace cannot be written to {packed}: {error}")
        finally:
            plain.unlink()
