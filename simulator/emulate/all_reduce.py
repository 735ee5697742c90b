"""All-reduce message by message on arrays of torch or numpy: who sends what and when, and the order of additions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Literal, get_args

Algorithm = Literal["ring", "tree", "hierarchical"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
# https://github.com/pytorch/gloo/blob/main/gloo/allreduce.h, kMaxSegmentSize
_MAX_SEGMENT_BYTES = 1 << 20


def chunk_bounds(elements: int, ranks: int, element_bytes: int) -> list[int]:
    """Return the `ranks + 1` places where an array is cut for a ring: chunk c lies between places c and c + 1.

    The cuts decide which rank's numbers are added first, and so the last bits of the sum. As in gloo, chunks are whole
    numbers of segments, at least two each, so that one is sent while another is added; the last chunks may be empty
    (https://github.com/pytorch/gloo/blob/main/gloo/allreduce.cc, ring).
    """
    size = elements * element_bytes
    largest = element_bytes * max(1, _MAX_SEGMENT_BYTES // element_bytes)
    segments = _round_up(max(-(-size // largest), 2 * ranks), ranks)
    segment = _round_up(-(-size // segments), element_bytes) // element_bytes
    chunk = segments // ranks * segment
    return [min(elements, place * chunk) for place in range(ranks + 1)]


@dataclass(frozen=True)
class Message:
    """Elements [start, stop) of `source`; `target` adds them to its own or, if they are final, replaces its own."""

    source: int
    target: int
    start: int
    stop: int
    is_added: bool


Round = list[Message]
"""Messages that travel at the same time."""


@dataclass(frozen=True)
class Traffic:
    """What an all-reduce sends."""

    rounds: int
    sent: tuple[int, ...]
    """Bytes by rank."""


def rounds_of(algorithm: Algorithm, ranks: int, per_node: int, elements: int, element_bytes: int) -> list[Round]:
    """Return the messages of an all-reduce; `per_node`, the ranks that share a machine, matters for hierarchical."""
    if algorithm == "ring":
        return list(_ring(list(range(ranks)), chunk_bounds(elements, ranks, element_bytes)))
    if algorithm == "tree":
        return list(_tree(ranks, elements))
    return list(_hierarchical(ranks, min(per_node, ranks), elements, element_bytes))


def all_reduce(arrays: Sequence[Any], rounds: Iterable[Round], copy: Callable[[Any], Any]) -> None:
    """Send the messages, in place: afterwards every rank's array is the sum. `copy` is the array library's copy."""
    for messages in rounds:
        # All messages of a round are sent before any arrives.
        payloads = [copy(arrays[message.source][message.start : message.stop]) for message in messages]
        for message, payload in zip(messages, payloads, strict=True):
            place = arrays[message.target][message.start : message.stop]
            place[:] = place + payload if message.is_added else payload


def count_traffic(rounds: Sequence[Round], ranks: int, element_bytes: int) -> Traffic:
    """Count the rounds and the bytes that each rank sends."""
    sent = [0] * ranks
    for message in chain.from_iterable(rounds):
        sent[message.source] += (message.stop - message.start) * element_bytes
    return Traffic(len(rounds), tuple(sent))


def _ring(ranks: list[int], cuts: list[int]) -> Iterator[Round]:
    """Yield a ring downwards, like gloo's: chunk c starts at the rank before its owner c and ends there, complete."""
    yield from _scatter(ranks, cuts)
    yield from _gather(ranks, cuts)


def _scatter(ranks: list[int], cuts: list[int]) -> Iterator[Round]:
    for step in range(len(ranks) - 1):
        yield _pass_on(ranks, cuts, step + 1, is_added=True)


def _gather(ranks: list[int], cuts: list[int]) -> Iterator[Round]:
    for step in range(len(ranks) - 1):
        yield _pass_on(ranks, cuts, step, is_added=False)


def _pass_on(ranks: list[int], cuts: list[int], ahead: int, *, is_added: bool) -> Round:
    """Each rank sends the chunk that is `ahead` of its own to the rank below; an empty chunk sends no message."""
    messages = []
    for place, rank in enumerate(ranks):
        chunk = (place + ahead) % len(ranks)
        messages.append(Message(rank, ranks[place - 1], cuts[chunk], cuts[chunk + 1], is_added))
    return [message for message in messages if message.stop > message.start]


def _tree(ranks: int, elements: int) -> Iterator[Round]:
    """Yield sums up the tree by pairs, fours, eights to rank 0, and the result down the same way."""
    distances = [1 << level for level in range((ranks - 1).bit_length())]
    pairs = [[(low, low + d) for low in range(0, ranks - d, 2 * d)] for d in distances]
    for level in pairs:
        yield [Message(high, low, 0, elements, True) for low, high in level]
    for level in reversed(pairs):
        yield [Message(low, high, 0, elements, False) for low, high in level]


def _hierarchical(ranks: int, per_node: int, elements: int, element_bytes: int) -> Iterator[Round]:
    """Reduce-scatter inside each machine, all-reduce equal chunks across machines, all-gather inside each machine."""
    nodes = [list(range(first, first + per_node)) for first in range(0, ranks, per_node)]
    cuts = chunk_bounds(elements, per_node, element_bytes)
    rails = []
    for place, (start, stop) in enumerate(pairwise(cuts)):
        rail = list(range(place, ranks, per_node))
        rails.append(_ring(rail, [start + cut for cut in chunk_bounds(stop - start, len(rail), element_bytes)]))
    yield from _merge([_scatter(node, cuts) for node in nodes])
    yield from _merge(rails)
    yield from _merge([_gather(node, cuts) for node in nodes])


def _merge(groups: list[Iterator[Round]]) -> Iterator[Round]:
    for rounds in zip(*groups, strict=True):
        yield [message for messages in rounds for message in messages]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
