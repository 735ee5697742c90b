"""Plan the messages of a schedule on a tensor: where each begins and ends, and before which step it is expected.

A plan depends on sizes only. It takes as long as to start the messages of a small tensor, so those of all-reduces are
made once for all tensors of a size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trainer.collectives.schedule import Schedule, Span, Step, Transfer

EARLY_BYTES = 16 << 20
"""Memory for messages that wait to be added; two steps of each chunk may take more."""


class PlannedMessage(NamedTuple):
    """A message from, or to, the elements from `start` up to, but not including, `stop`."""

    start: int
    stop: int
    peer: int
    is_added: bool = False
    """Whether it is received into the scratch memory, where these elements are then."""


class PlannedAddition(NamedTuple):
    """Elements of the tensor to which elements of the scratch memory are added."""

    start: int
    stop: int
    scratch_start: int


class PlannedStep(NamedTuple):
    """What a chunk does in a step."""

    receives: tuple[tuple[PlannedMessage, ...], ...]
    """The messages of each step, this one or a later one, that it begins to expect."""
    sends: tuple[PlannedMessage, ...]
    additions: tuple[PlannedAddition, ...]
    """What it adds when the messages of this step have arrived."""


@dataclass(frozen=True)
class ExchangePlan:
    """The steps of each chunk, and how many elements of scratch memory all of them need."""

    chunks: tuple[tuple[PlannedStep, ...], ...]
    chunk_interval: int
    chunks_in_flight: int
    scratch_elements: int


def plan_exchange(
    schedule: Schedule, chunks: Sequence[Sequence[Span]], element_bytes: int, *, is_early: bool
) -> ExchangePlan:
    """Plan a schedule; `chunks` has the span of each block, `is_early` lets messages arrive before their step."""
    steps = schedule.steps
    if not steps:
        return ExchangePlan((), schedule.chunk_interval, 0, 0)
    in_flight = min(schedule.chunks_in_flight, len(chunks))
    size = max(_count_added(step, spans) for step in steps for spans in chunks)
    is_adding = [_is_adding(step) for step in steps]
    slots = count_slots(sum(is_adding), in_flight * size * element_bytes) if is_early else 1
    stops = list_stops(is_adding, slots) if is_early else range(1, len(steps) + 1)
    # The memory of a chunk that has ended is used by the one that starts then.
    planned = [
        _plan_chunk(steps, spans, stops, [(number % in_flight * slots + slot) * size for slot in range(slots)])
        for number, spans in enumerate(chunks)
    ]
    return ExchangePlan(tuple(planned), choose_interval(schedule, len(chunks)), in_flight, in_flight * slots * size)


def choose_interval(schedule: Schedule, chunks: int) -> int:
    """Return how many steps after the previous one a chunk starts.

    The interval of a ring only limits how many chunks are in flight: if that are all, they start together. An interval
    of a single step makes chunks use different links at the same time.
    """
    is_limit = schedule.chunk_interval > 1
    return 0 if is_limit and chunks <= schedule.chunks_in_flight else schedule.chunk_interval


def count_slots(adding_steps: int, slot_bytes: int) -> int:
    """Return for how many of the steps that add there is memory to receive, if each needs so many bytes."""
    return min(max(1, adding_steps), max(2, EARLY_BYTES // max(1, slot_bytes)))


def list_stops(is_adding: Sequence[bool], slots: int) -> list[int]:
    """Return, for each step, the first later one whose messages are not expected yet while that step runs.

    A step that adds what it receives needs a slot until it ends. What is only received goes to its place at once.
    """
    stops = []
    for number in range(len(is_adding)):
        stop, free = number + 1, slots - is_adding[number]
        while stop < len(is_adding) and free >= is_adding[stop]:
            free -= is_adding[stop]
            stop += 1
        stops.append(stop)
    return stops


def _plan_chunk(
    steps: Sequence[Step], spans: Sequence[Span], stops: Sequence[int], slots: Sequence[int]
) -> tuple[PlannedStep, ...]:
    """Plan the steps of a chunk; steps that add take turns with its slots, of which the first elements are given."""
    received: list[tuple[PlannedMessage, ...]] = []
    added: list[tuple[PlannedAddition, ...]] = []
    turn = 0
    for step in steps:
        messages, additions = _plan_receives(step, spans, slots[turn % len(slots)])
        received.append(messages)
        added.append(additions)
        turn += _is_adding(step)
    planned, expected = [], 0
    for number, step in enumerate(steps):
        sends = [
            PlannedMessage(*_locate(each, spans), each.peer)
            for each in step
            if each.action == "send" and not _is_empty(each, spans)
        ]
        planned.append(PlannedStep(tuple(received[expected : stops[number]]), tuple(sends), added[number]))
        expected = stops[number]
    return tuple(planned)


def _plan_receives(
    step: Step, spans: Sequence[Span], scratch: int
) -> tuple[tuple[PlannedMessage, ...], tuple[PlannedAddition, ...]]:
    """Return what a step receives and adds, in its order, in which the peers send; empty blocks need no message."""
    messages, additions = [], []
    for transfer in step:
        if transfer.action == "send" or _is_empty(transfer, spans):
            continue
        start, stop = _locate(transfer, spans)
        if transfer.action == "receive":
            messages.append(PlannedMessage(start, stop, transfer.peer))
            continue
        end = scratch + stop - start
        messages.append(PlannedMessage(scratch, end, transfer.peer, is_added=True))
        additions.append(PlannedAddition(start, stop, scratch))
        scratch = end
    return tuple(messages), tuple(additions)


def _is_adding(step: Step) -> bool:
    return any(transfer.action == "add" for transfer in step)


def _count_added(step: Step, spans: Sequence[Span]) -> int:
    located = [_locate(transfer, spans) for transfer in step if transfer.action == "add"]
    return sum(stop - start for start, stop in located)


def _locate(transfer: Transfer, spans: Sequence[Span]) -> Span:
    return spans[transfer.first][0], spans[transfer.stop - 1][1]


def _is_empty(transfer: Transfer, spans: Sequence[Span]) -> bool:
    start, stop = _locate(transfer, spans)
    return start == stop
