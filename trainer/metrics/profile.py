"""Now and then one step under torch's profiler: which collectives ran, on which group, and what they cost."""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch

from trainer.metrics.communication import Event, Interval, Profile, collective, summarise

STEP = "trainer::step"
Entry = dict[str, Any]
# Slow ranks can be told apart only once it is known how long each one waits, so the first answer comes early: after
# compilers and caches have settled, and counted from the start of this process, since a resumed run knows no more.
EARLY = 10
AGAIN = 4
_REMEMBERED = 3
_SAME_SHARE = 0.2
_STAMP_S = 0.002
_WIDTH = {"Double": 8, "Long": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Byte": 1, "Bool": 1}


class Profiler:
    """`around(step)` profiles the step when its turn has come and hands the result to `done`.

    The profiler already runs in the step before: to start it takes each rank another time, and whoever comes late to a
    step's first collective for that would look like one who waits for nobody.
    """

    def __init__(self, every: int, device: torch.device, done: Callable[[Profile], None]) -> None:
        self._every = every
        self._device = device
        self._done = done
        self._count = 0
        self._extra = EARLY
        self._running: Any = None
        self._shares: deque[float] = deque(maxlen=_REMEMBERED)
        self._disagreed = 0

    @property
    def exposed_share(self) -> float:
        """Of a step's time, by the last profiles together: one of them may have met a moment of noise."""
        return median(self._shares)

    @contextmanager
    def around(self, step: int) -> Iterator[None]:
        self._count += 1
        if not self._is_due(step, self._count):
            self._stop()  # the step it was started for did not come
            if self._is_due(step + 1, self._count + 1):
                self._start()
            yield
            return
        self._start()
        from torch.profiler import record_function  # noqa: PLC0415

        self._wait_for_device()
        with record_function(STEP):
            yield
        self._wait_for_device()
        raw = self._stop()
        profile = (_device_profile if self._device.type == "cuda" else _host_profile)(step, raw, _recorded())
        if profile is None:
            self._extra = self._count + AGAIN
            return
        self._judge(profile.exposed_share)
        self._done(profile)

    def _is_due(self, step: int, count: int) -> bool:
        if not self._every:
            return False
        return step % self._every == 0 or (count == self._extra and self._every > EARLY)

    def _start(self) -> None:
        if self._running:
            return
        # The profiler's notes to its own users ("no GPU", "profiler_start", cycles) are none to the run's.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        warnings.filterwarnings("ignore", message="Warning: Profiler clears events")
        from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])]
        self._running = profile(activities=activities, record_shapes=True)
        self._running.start()

    def _stop(self) -> Sequence[Any]:
        if not self._running:
            return []
        running, self._running = self._running, None
        running.stop()
        raw: Sequence[Any] = running.profiler.kineto_results.events()
        # The profiler is part of a cycle: it would hold megabytes until the next garbage collection.
        running.profiler.kineto_results = None
        return raw

    def _wait_for_device(self) -> None:
        """Kernels that run inside the step's frame are then the step's own, and gloo's threads have stamped theirs."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        else:
            time.sleep(_STAMP_S)

    def _judge(self, share: float) -> None:
        """A profile that says something new is soon followed by another, a few times at most."""
        agrees = bool(self._shares) and abs(share - self._shares[-1]) <= _SAME_SHARE
        self._shares.append(share)
        self._disagreed = 0 if agrees else self._disagreed + 1
        if 0 < self._disagreed < _REMEMBERED:
            self._extra = self._count + AGAIN


def _recorded() -> list[Entry]:
    """What the flight recorders know, oldest first; empty where they are off (TORCH_FR_BUFFER_SIZE).

    NCCL has one of its own. A run on GPUs has gloo groups beside it, so both may be there.
    """
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return []
    from torch._C import _distributed_c10d  # noqa: PLC0415

    found: dict[tuple[str, int], Entry] = {}
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(_distributed_c10d, name, None)
        for entry in json.loads(dump()).get("entries", []) if dump else []:
            found[entry["profiling_name"], entry["time_created_ns"]] = entry
    return sorted(found.values(), key=lambda entry: entry["time_created_ns"])


def _host_profile(step: int, raw: Sequence[Any], entries: Sequence[Entry]) -> Profile | None:
    """gloo: messages run on its own threads; the thread that entered the step computes.

    None where gloo's threads did not get to stamp their messages: the step would look like one that waits for nobody.
    """
    frame = next(event for event in raw if event.name() == STEP)
    span = _interval(frame)
    since = [event for event in raw if event.start_ns() >= span[0]]
    mine = [event for event in since if event.start_thread_id() == frame.start_thread_id()]
    compute = [Event("", *_interval(e), "compute") for e in mine if e.name().startswith(("aten::", "## Call Compiled"))]
    calls = [event for event in mine if event.name().startswith("c10d::")]
    messages = [event for event in since if event.name().startswith("gloo:")]
    if calls and not messages:
        return None
    return summarise(step, compute + _messages(messages, calls, _since(entries, span[0])), span, host=True)


def _device_profile(step: int, raw: Sequence[Any], entries: Sequence[Entry]) -> Profile:
    """NCCL: messages and compute are kernels on the streams of one GPU."""
    frame = next(event for event in raw if event.name() == STEP and not _on_device(event))
    inside = [event for event in raw if event.start_ns() >= frame.start_ns()]
    work = [event for event in inside if _on_device(event) and not event.is_user_annotation()]
    messages = [event for event in work if event.name().startswith("nccl")]
    compute = [Event("", *_interval(e), "compute") for e in work if not e.name().startswith("nccl")]
    span = _interval(frame)
    if work:
        span = min(e.start_ns() for e in work), max(_interval(e)[1] for e in work)
    found = _messages(messages, [], _since(entries, frame.start_ns()))
    return summarise(step, compute + found, span, host=False)


def _messages(raw: Sequence[Any], calls: Sequence[Any], entries: Sequence[Entry]) -> list[Event]:
    """Each message with the group and size the flight recorder has for it: first come, first served per kind and size.

    gloo does a reduce-scatter by an all-reduce; the call that asked for it has the right name.
    """
    waiting: dict[tuple[str, int], deque[Entry]] = defaultdict(deque)
    for entry in entries:
        waiting[_key(entry["profiling_name"], _count(entry["input_sizes"]))].append(entry)
    events = []
    for message in sorted(raw, key=lambda event: event.start_ns()):
        count = _count(message.shapes())
        queue = waiting[_key(message.name(), count)]
        if not queue:
            events.append(Event(collective(message.name()), *_interval(message), "communication", "", 4 * count))
            continue
        entry = queue.popleft()
        moment = entry["time_created_ns"]
        asked = [call.name() for call in calls if call.start_ns() <= moment <= _interval(call)[1]]
        name = collective(asked[-1] if asked else entry["profiling_name"])
        events.append(Event(name, *_interval(message), "communication", _group(entry), _size(entry)))
    return events


def _key(name: str, count: int) -> tuple[str, int]:
    """A kernel of NCCL does not say how much it moves."""
    return (collective(name), count if name.startswith("gloo:") else 0)


def _group(entry: Entry) -> str:
    name, description = entry["process_group"]
    if description in ("", "undefined"):
        return f"group {name}"
    return "world" if description == "default_pg" else str(description).removeprefix("mesh_")


def _size(entry: Entry) -> int:
    """Bytes of the larger side."""
    sides = [(entry[f"{side}_sizes"], entry[f"{side}_dtypes"]) for side in ("input", "output")]
    return max(_count(sizes) * _WIDTH.get(types[0] if types else "", 4) for sizes, types in sides)


def _count(shapes: Sequence[Sequence[int]]) -> int:
    return sum(math.prod(shape) for shape in shapes if shape)


def _since(entries: Sequence[Entry], begin: int) -> list[Entry]:
    return [entry for entry in entries if entry["time_created_ns"] >= begin]


def _interval(event: Any) -> Interval:
    return event.start_ns(), event.start_ns() + event.duration_ns()


def _on_device(event: Any) -> bool:
    return str(event.device_type()) == "DeviceType.CUDA"
