"""Communication of one step out of a profile's events: by collective and group, overlapped or exposed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Interval = tuple[int, int]
Kind = Literal["compute", "communication"]
# gloo wakes whoever waits a little before it stamps the message's end; on a busy machine other threads run in between.
_STAMP_NS = 1_000_000
_STAMP_SHARE = 0.1

_NCCL_KERNEL = re.compile(r"nccl\w*Kernel_([A-Za-z]+)")
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
_SAME = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgather_base": "all_gather",
    "all_gather_base": "all_gather",
    "reduce_scatter_base": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "recv_any_source": "recv",
    "send_recv": "send_recv",
}


@dataclass(frozen=True)
class Event:
    """Something that ran from start to end (ns) on this rank; group, size and name as far as they are known."""

    name: str
    start: int
    end: int
    kind: Kind
    group: str = ""
    size: int = 0


@dataclass
class Traffic:
    """One collective on one group over the step. `mb` counts whole tensors: the larger of what went in and came out."""

    collective: str
    group: str
    count: int = 0
    mb: float = 0.0
    ms: float = 0.0
    exposed_ms: float = 0.0


@dataclass
class Profile:
    """`communication_ms` and `exposed_ms` count a moment once, however many collectives ran in it."""

    step: int
    span_ms: float
    compute_ms: float
    communication_ms: float
    exposed_ms: float
    traffic: list[Traffic] = field(default_factory=list)

    @property
    def exposed_share(self) -> float:
        return self.exposed_ms / self.span_ms if self.span_ms else 0.0


def summarise(step: int, events: Sequence[Event], span: Interval, *, host: bool) -> Profile:
    """`host`: compute ran on a host thread, where a gap between two operations may be plain Python."""
    compute = merge((e.start, e.end) for e in events if e.kind == "compute")
    messages = [e for e in events if e.kind == "communication"]
    busy = merge((e.start, e.end) for e in messages)
    waits = _waits(compute, sorted(e.end for e in messages), span) if host else _gaps(compute, span)
    table: dict[tuple[str, str], Traffic] = {}
    for event in messages:
        row = table.setdefault((event.name, event.group), Traffic(event.name, event.group))
        row.count += 1
        row.mb += event.size / 1e6
        row.ms += (event.end - event.start) / 1e6
        row.exposed_ms += _length(_both([(event.start, event.end)], waits)) / 1e6
    return Profile(
        step=step,
        span_ms=(span[1] - span[0]) / 1e6,
        compute_ms=_length(compute) / 1e6,
        communication_ms=_length(busy) / 1e6,
        exposed_ms=_length(_both(busy, waits)) / 1e6,
        traffic=sorted(table.values(), key=lambda row: -row.ms),
    )


def collective(name: str) -> str:
    """The plain name: `ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`, `nccl:_all_gather_base`, `c10d::allreduce_`."""
    kernel = _NCCL_KERNEL.search(name)
    if kernel:
        plain = _CAPITAL.sub("_", kernel.group(1)).lower()
    else:
        plain = re.split(r"::?", name)[-1].split(" ")[0].strip("_").removesuffix("_coalesced")
    return _SAME.get(plain, plain)


def merge(intervals: Iterable[Interval]) -> list[Interval]:
    """The same moments, sorted and without overlap."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _waits(compute: Sequence[Interval], ends: Sequence[int], span: Interval) -> list[Interval]:
    """Gaps of a host thread that were waits: up to the last message that ended inside, or so little later that its end
    may be what woke the thread.

    A thread that goes on while a message is still under way was not waiting for it; it was running Python.
    """
    waits = []
    for start, end in _gaps(compute, span):
        latest = end + _late_ns(end - start)
        inside = [moment for moment in ends if start < moment <= latest]
        if inside:
            waits.append((start, min(inside[-1], end)))
    return waits


def _late_ns(gap_ns: int) -> int:
    """Never more than the gap: the many short ones of plain Python shortly before an end were no waits."""
    return min(gap_ns, max(_STAMP_NS, int(gap_ns * _STAMP_SHARE)))


def _gaps(compute: Sequence[Interval], span: Interval) -> list[Interval]:
    edges = [span[0], *(edge for interval in compute for edge in interval), span[1]]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [(start, end) for start, end in pairs if start < end]


def _both(left: Sequence[Interval], right: Sequence[Interval]) -> list[Interval]:
    """The moments in both; each side sorted and without overlap."""
    found, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            found.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return found


def _length(intervals: Iterable[Interval]) -> int:
    return sum(end - start for start, end in intervals)
