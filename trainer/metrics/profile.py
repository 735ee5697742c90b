"""Profile a step from time to time, to record which collectives ran, on which group, and how long they took."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch

from trainer.metrics.communication import Event, Interval, Link, Profile, name_collective, summarise
from trainer.metrics.flight_recorder import FlightEntry, read_flight_recorders, wait_for_gloo
from trainer.metrics.links import list_links

STEP_EVENT = "trainer::step"
# Slow ranks can be detected only once a profile has shown how long each rank waits, so the first profile comes early,
# just after compilers and caches have warmed up. It counts steps of this process, because a resumed run has no profile.
FIRST_PROFILE_AFTER_STEPS = 10
REPEAT_AFTER_STEPS = 4
_SHARES_TO_KEEP = 3
_SHARE_TOLERANCE = 0.2
_BYTES_PER_VALUE = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Byte": 1, "Bool": 1}


class Profiler:
    """A profiler of the steps that are due, which passes the results to `done`.

    torch's profiler is started one step early. Starting it takes a different time on each rank, and a rank that is
    therefore late for a step's first collective would seem never to wait.
    """

    def __init__(
        self, every: int, device: torch.device, done: Callable[[Profile], None], hosts: Sequence[str] = ()
    ) -> None:
        """Profile every so many steps; with `hosts`, the host of each rank, collectives have a link."""
        self._every = every
        self._hosts = hosts
        self._device = device
        self._done = done
        self._count = 0
        self._extra = FIRST_PROFILE_AFTER_STEPS
        self._running: Any = None
        self._started_ns = 0
        self._shares: deque[float] = deque(maxlen=_SHARES_TO_KEEP)
        self._disagreements = 0

    @property
    def exposed_share(self) -> float:
        """Share of a step's time that waits for communication: the median of the last profiles, to filter noise."""
        return median(self._shares)

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        """Run a step, profiling it if it is due."""
        self._count += 1
        if not self._is_due(step, self._count):
            self._stop()  # it was started for a step that was skipped
            if self._is_due(step + 1, self._count + 1):
                self._start()
            yield
            return
        self._start()
        from torch.profiler import record_function  # noqa: PLC0415 - only for profiled steps

        self._wait_for_device()
        with record_function(STEP_EVENT):
            yield
        self._wait_for_device()
        raw = self._stop()
        profile = (_profile_device if self._device.type == "cuda" else _profile_host)(
            step, raw, read_flight_recorders(), list_links(self._hosts)
        )
        if profile is None:
            self._extra = self._count + REPEAT_AFTER_STEPS
            return
        self._add_share(profile.exposed_share)
        self._done(profile)

    def cancel(self) -> None:
        """Stop profiling, if it was started for the next step."""
        self._stop()

    def _is_due(self, step: int, count: int) -> bool:
        if not self._every:
            return False
        return step % self._every == 0 or (count == self._extra and self._every > FIRST_PROFILE_AFTER_STEPS)

    def _start(self) -> None:
        if self._running:
            return
        # The profiler's own messages ("no GPU", "profiler_start", cycles) mean nothing to the user of a run.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        warnings.filterwarnings("ignore", message="Warning: Profiler clears events")
        from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415 - only for profiled steps

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])]
        self._running = profile(activities=activities, record_shapes=True)
        self._started_ns = time.time_ns()
        self._running.start()

    def _stop(self) -> Sequence[Any]:
        if not self._running:
            return []
        running, self._running = self._running, None
        wait_for_gloo(self._started_ns)
        running.stop()
        raw: Sequence[Any] = running.profiler.kineto_results.events()
        # The profiler is part of a reference cycle, which would hold megabytes until the next garbage collection.
        running.profiler.kineto_results = None
        return raw

    def _wait_for_device(self) -> None:
        """Let earlier work finish, so that what is inside the step is its own."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        else:
            wait_for_gloo(self._started_ns)

    def _add_share(self, share: float) -> None:
        """Store a share and, if it differs from the last, schedule another profile soon, a few times at most."""
        agrees = bool(self._shares) and abs(share - self._shares[-1]) <= _SHARE_TOLERANCE
        self._shares.append(share)
        self._disagreements = 0 if agrees else self._disagreements + 1
        if 0 < self._disagreements < _SHARES_TO_KEEP:
            self._extra = self._count + REPEAT_AFTER_STEPS


def _profile_host(
    step: int, raw: Sequence[Any], entries: Sequence[FlightEntry], links: Mapping[str, Link]
) -> Profile | None:
    """Profile a step on a CPU: gloo sends on its own threads, and the thread that entered the step computes.

    Returns None if gloo's threads had no time to record their messages: the rank would seem never to wait.
    """
    frame = next(event for event in raw if event.name() == STEP_EVENT)
    span = _interval(frame)
    since = [event for event in raw if event.start_ns() >= span[0]]
    own = [event for event in since if event.start_thread_id() == frame.start_thread_id()]
    compute = [Event("", *_interval(e), "compute") for e in own if e.name().startswith(("aten::", "## Call Compiled"))]
    calls = [event for event in own if event.name().startswith("c10d::")]
    messages = [event for event in since if event.name().startswith("gloo:")]
    if calls and not messages:
        return None
    matched = _match_messages(messages, calls, _select_since(entries, span[0]), links)
    return summarise(step, compute + matched, span, host=True)


def _profile_device(
    step: int, raw: Sequence[Any], entries: Sequence[FlightEntry], links: Mapping[str, Link]
) -> Profile:
    """Profile a step on a GPU: NCCL messages and compute are kernels on its streams."""
    frame = next(event for event in raw if event.name() == STEP_EVENT and not _on_device(event))
    inside = [event for event in raw if event.start_ns() >= frame.start_ns()]
    work = [event for event in inside if _on_device(event) and not event.is_user_annotation()]
    messages = [event for event in work if event.name().startswith("nccl")]
    compute = [Event("", *_interval(e), "compute") for e in work if not e.name().startswith("nccl")]
    span = _interval(frame)
    if work:
        span = min(e.start_ns() for e in work), max(_interval(e)[1] for e in work)
    matched = _match_messages(messages, [], _select_since(entries, frame.start_ns()), links)
    return summarise(step, compute + matched, span, host=False)


def _match_messages(
    raw: Sequence[Any], calls: Sequence[Any], entries: Sequence[FlightEntry], links: Mapping[str, Link]
) -> list[Event]:
    """Give each message the group, its link, and the size of the next matching entry of the flight recorder.

    gloo implements reduce-scatter with an all-reduce, so the name is taken from the call.
    """
    waiting: dict[tuple[str, int], deque[FlightEntry]] = defaultdict(deque)
    for entry in entries:
        waiting[_make_key(entry["profiling_name"], _count_values(entry["input_sizes"]))].append(entry)
    events = []
    for message in sorted(raw, key=lambda event: event.start_ns()):
        count = _count_values(message.shapes())
        queue = waiting[_make_key(message.name(), count)]
        if not queue:
            events.append(Event(name_collective(message.name()), *_interval(message), "communication", "", 4 * count))
            continue
        entry = queue.popleft()
        created_ns = entry["time_created_ns"]
        callers = [call.name() for call in calls if call.start_ns() <= created_ns <= _interval(call)[1]]
        name = name_collective(callers[-1] if callers else entry["profiling_name"])
        link = links.get(entry["process_group"][0], "")
        events.append(Event(name, *_interval(message), "communication", _name_group(entry), _count_bytes(entry), link))
    return events


def _make_key(name: str, count: int) -> tuple[str, int]:
    # The size of a message is not known from its NCCL kernel.
    return (name_collective(name), count if name.startswith("gloo:") else 0)


def _name_group(entry: FlightEntry) -> str:
    name, description = entry["process_group"]
    if description in ("", "undefined"):
        return f"group {name}"
    return "world" if description == "default_pg" else str(description).removeprefix("mesh_")


def _count_bytes(entry: FlightEntry) -> int:
    """Return the bytes of the larger of input and output."""
    sides = [(entry[f"{side}_sizes"], entry[f"{side}_dtypes"]) for side in ("input", "output")]
    return max(_count_values(sizes) * _BYTES_PER_VALUE.get(types[0] if types else "", 4) for sizes, types in sides)


def _count_values(shapes: Sequence[Sequence[int]]) -> int:
    return sum(math.prod(shape) for shape in shapes if shape)


def _select_since(entries: Sequence[FlightEntry], start_ns: int) -> list[FlightEntry]:
    return [entry for entry in entries if entry["time_created_ns"] >= start_ns]


def _interval(event: Any) -> Interval:
    return event.start_ns(), event.start_ns() + event.duration_ns()


def _on_device(event: Any) -> bool:
    return str(event.device_type()) == "DeviceType.CUDA"
