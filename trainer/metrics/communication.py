"""Summarise the communication of a profiled step by collective, group and link, and how much compute does not hide."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Interval = tuple[int, int]
Kind = Literal["compute", "communication"]
Link = Literal["node", "network", ""]
"""Where the messages of a group travel: inside a node, or between nodes; empty if it is unknown."""
# gloo wakes a waiting thread shortly before it records the end of the message; on a busy machine other threads may run
# in between.
_END_DELAY_NS = 1_000_000
_END_DELAY_FRACTION = 0.1

_NCCL_KERNEL = re.compile(r"nccl\w*Kernel_([A-Za-z]+)")
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")
_ALIASES = {
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
    """Compute or communication on this rank from start to end, in nanoseconds."""

    name: str
    start: int
    end: int
    kind: Kind
    group: str = ""
    size: int = 0
    """Bytes; 0 if unknown."""
    link: Link = ""


@dataclass
class Traffic:
    """The calls of one collective on one group during the step."""

    collective: str
    group: str
    count: int = 0
    mb: float = 0.0
    """Size of the whole tensors: the larger of input and output of each call."""
    ms: float = 0.0
    exposed_ms: float = 0.0
    link: Link = ""
    """Whether all ranks of the group are in one node."""


@dataclass
class Profile:
    """The communication of one step; collectives that run at the same time count once in the totals."""

    step: int
    span_ms: float
    compute_ms: float
    communication_ms: float
    exposed_ms: float
    traffic: list[Traffic] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    """What the rank did and when, for its timeline."""

    @property
    def exposed_share(self) -> float:
        return self.exposed_ms / self.span_ms if self.span_ms else 0.0


def summarise(step: int, events: Sequence[Event], span: Interval, *, host: bool) -> Profile:
    """Summarise the events of a step.

    `host` means that compute ran on a host thread, where a gap between two operations may be plain Python.
    """
    compute = merge_intervals((e.start, e.end) for e in events if e.kind == "compute")
    messages = [e for e in events if e.kind == "communication"]
    busy = merge_intervals((e.start, e.end) for e in messages)
    waits = _find_waits(compute, sorted(e.end for e in messages), span) if host else _find_gaps(compute, span)
    table: dict[tuple[str, str], Traffic] = {}
    for event in messages:
        row = table.setdefault((event.name, event.group), Traffic(event.name, event.group, link=event.link))
        row.count += 1
        row.mb += event.size / 1e6
        row.ms += (event.end - event.start) / 1e6
        row.exposed_ms += _sum_lengths(_intersect([(event.start, event.end)], waits)) / 1e6
    return Profile(
        step=step,
        span_ms=(span[1] - span[0]) / 1e6,
        compute_ms=_sum_lengths(compute) / 1e6,
        communication_ms=_sum_lengths(busy) / 1e6,
        exposed_ms=_sum_lengths(_intersect(busy, waits)) / 1e6,
        traffic=sorted(table.values(), key=lambda row: -row.ms),
        events=list(events),
    )


def name_collective(name: str) -> str:
    """Return the plain name of a collective.

    `ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`, `c10d::allreduce_` and `gloo:all_reduce` are all `all_reduce`.
    """
    kernel = _NCCL_KERNEL.search(name)
    if kernel:
        plain = _CAPITAL.sub("_", kernel.group(1)).lower()
    else:
        plain = re.split(r"::?", name)[-1].split(" ")[0].strip("_").removesuffix("_coalesced")
    return _ALIASES.get(plain, plain)


def merge_intervals(intervals: Iterable[Interval]) -> list[Interval]:
    """Return intervals that cover the same time, sorted and without overlap."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _find_waits(compute: Sequence[Interval], ends: Sequence[int], span: Interval) -> list[Interval]:
    """Return the gaps of a host thread that were waits for messages.

    A wait lasts until the end of the last message that ended inside the gap, or so soon after it that it may have woken
    the thread. A thread that continues while a message is still in flight was not waiting for it, but running Python.
    """
    waits = []
    for start, end in _find_gaps(compute, span):
        latest = end + _allowed_delay_ns(end - start)
        inside = [moment for moment in ends if start < moment <= latest]
        if inside:
            waits.append((start, min(inside[-1], end)))
    return waits


def _allowed_delay_ns(gap_ns: int) -> int:
    # Never longer than the gap: the many short gaps of plain Python just before the end of a message are not waits.
    return min(gap_ns, max(_END_DELAY_NS, int(gap_ns * _END_DELAY_FRACTION)))


def _find_gaps(compute: Sequence[Interval], span: Interval) -> list[Interval]:
    edges = [span[0], *(edge for interval in compute for edge in interval), span[1]]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return [(start, end) for start, end in pairs if start < end]


def _intersect(left: Sequence[Interval], right: Sequence[Interval]) -> list[Interval]:
    """Return the time covered by both sides, each of which is sorted and without overlap."""
    overlaps, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            overlaps.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return overlaps


def _sum_lengths(intervals: Iterable[Interval]) -> int:
    return sum(end - start for start, end in intervals)
