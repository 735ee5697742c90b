"""All-reduce message by message on arrays of torch or numpy: who sends what when, and in which order it is added."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any, Literal, get_args

from simulator.emulate.chunks import bounds

Algorithm = Literal["ring", "tree", "hierarchical"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)


@dataclass(frozen=True)
class Message:
    """Elements [start, stop) of `source`; `target` adds them to its own or, where they are final, takes them."""

    source: int
    target: int
    start: int
    stop: int
    is_added: bool


Round = list[Message]
"""Messages that travel at the same time."""


@dataclass(frozen=True)
class Traffic:
    rounds: int
    sent: tuple[int, ...]
    """Bytes by rank."""


def rounds_of(algorithm: Algorithm, ranks: int, per_node: int, elements: int, element_bytes: int) -> list[Round]:
    """`per_node` ranks share a machine; only hierarchical asks."""
    if algorithm == "ring":
        return list(_ring(list(range(ranks)), bounds(elements, ranks, element_bytes)))
    if algorithm == "tree":
        return list(_tree(ranks, elements))
    return list(_hierarchical(ranks, min(per_node, ranks), elements, element_bytes))


def all_reduce(arrays: Sequence[Any], rounds: Iterable[Round], copy: Callable[[Any], Any]) -> None:
    """Send the messages, in place: every rank's array is the sum afterwards. `copy` is that of the array's library."""
    for messages in rounds:
        # All of a round leave before any arrives.
        letters = [copy(arrays[message.source][message.start : message.stop]) for message in messages]
        for message, letter in zip(messages, letters, strict=True):
            place = arrays[message.target][message.start : message.stop]
            place[:] = place + letter if message.is_added else letter


def traffic(rounds: Sequence[Round], ranks: int, element_bytes: int) -> Traffic:
    sent = [0] * ranks
    for message in chain.from_iterable(rounds):
        sent[message.source] += (message.stop - message.start) * element_bytes
    return Traffic(len(rounds), tuple(sent))


def _ring(ranks: list[int], cuts: list[int]) -> Iterator[Round]:
    """Downwards, as gloo's: chunk c begins at the rank before its owner c and ends, complete, at the owner."""
    yield from _scatter(ranks, cuts)
    yield from _gather(ranks, cuts)


def _scatter(ranks: list[int], cuts: list[int]) -> Iterator[Round]:
    for step in range(len(ranks) - 1):
        yield _pass_on(ranks, cuts, step + 1, is_added=True)


def _gather(ranks: list[int], cuts: list[int]) -> Iterator[Round]:
    for step in range(len(ranks) - 1):
        yield _pass_on(ranks, cuts, step, is_added=False)


def _pass_on(ranks: list[int], cuts: list[int], ahead: int, *, is_added: bool) -> Round:
    """Each rank sends the chunk that is `ahead` of its own to the rank below; an empty one makes no message."""
    messages = []
    for place, rank in enumerate(ranks):
        chunk = (place + ahead) % len(ranks)
        messages.append(Message(rank, ranks[place - 1], cuts[chunk], cuts[chunk + 1], is_added))
    return [message for message in messages if message.stop > message.start]


def _tree(ranks: int, elements: int) -> Iterator[Round]:
    """Up by pairs, fours, eights to rank 0, and down the same way."""
    distances = [1 << level for level in range((ranks - 1).bit_length())]
    pairs = [[(low, low + d) for low in range(0, ranks - d, 2 * d)] for d in distances]
    for level in pairs:
        yield [Message(high, low, 0, elements, True) for low, high in level]
    for level in reversed(pairs):
        yield [Message(low, high, 0, elements, False) for low, high in level]


def _hierarchical(ranks: int, per_node: int, elements: int, element_bytes: int) -> Iterator[Round]:
    """Each rank of a machine gets one chunk's sum; equal places of all machines sum that; then it goes round inside."""
    nodes = [list(range(first, first + per_node)) for first in range(0, ranks, per_node)]
    cuts = bounds(elements, per_node, element_bytes)
    rails = []
    for place, (start, stop) in enumerate(pairwise(cuts)):
        rail = list(range(place, ranks, per_node))
        rails.append(_ring(rail, [start + cut for cut in bounds(stop - start, len(rail), element_bytes)]))
    yield from _together([_scatter(node, cuts) for node in nodes])
    yield from _together(rails)
    yield from _together([_gather(node, cuts) for node in nodes])


def _together(groups: list[Iterator[Round]]) -> Iterator[Round]:
    for rounds in zip(*groups, strict=True):
        yield [message for messages in rounds for message in messages]
