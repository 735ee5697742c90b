"""Decide which rank is wrong, from what several ranks have computed of the same thing, and who checks whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

# Enough to find a witness on another host, and few enough to try them all on thousands of ranks.
_MAX_SHIFTS = 64


@dataclass(frozen=True)
class Result:
    """The fingerprint of what a rank has computed of an item; all ranks should have the same of the same item.

    An item is a rank's share of a batch, or a part of the weights that several ranks hold a copy of.
    """

    item: int
    rank: int
    fingerprint: str


@dataclass(frozen=True)
class Blame:
    """The ranks that are wrong; or, if that cannot be decided, those of which at least one is."""

    ranks: tuple[int, ...]
    is_decided: bool


def find_blame(results: Sequence[Result], hosts: Sequence[str]) -> Blame | None:
    """Return who is wrong, or None if all results of each item agree.

    For each item, the fingerprint that most results have is right. If there is no such fingerprint, the ranks are
    suspects. Their host is certain if they share it: `hosts` has the host of each rank.
    """
    by_item: dict[int, list[Result]] = {}
    for result in results:
        by_item.setdefault(result.item, []).append(result)
    wrong: set[int] = set()
    suspects: set[int] = set()
    for group in by_item.values():
        counts = Counter(result.fingerprint for result in group).most_common(2)
        if len(counts) == 1:
            continue
        (fingerprint, most), (_, second) = counts
        if most > second:
            wrong |= {result.rank for result in group if result.fingerprint != fingerprint}
        else:
            suspects |= {result.rank for result in group}
    if wrong:
        # If all ranks are wrong, they differ for another reason than one of them.
        is_decided = len(wrong) < len(hosts) or len(set(hosts)) == 1
        return Blame(tuple(sorted(wrong)), is_decided=is_decided)
    if suspects:
        return Blame(tuple(sorted(suspects)), is_decided=len({hosts[rank] for rank in suspects}) == 1)
    return None


def choose_shifts(hosts: Sequence[str]) -> tuple[int, tuple[int, ...]]:
    """Return how far samples move in a replay, and in the replays that settle a disagreement.

    With a shift of s, each rank computes the samples of the rank s places after it. Most ranks should get samples of
    another host: what is wrong may be the host. A third rank settles a disagreement. Two ranks both compute again: the
    one that does not agree with itself is wrong. A single rank can only compare with itself.
    """
    count = len(hosts)
    if count == 1:
        return 0, (0,)
    shifts = sorted(range(1, min(count, _MAX_SHIFTS)), key=lambda shift: (_count_same_hosts(hosts, shift), shift))
    return shifts[0], tuple(shifts[1:2]) or (0, shifts[0])


def _count_same_hosts(hosts: Sequence[str], shift: int) -> int:
    return sum(host == hosts[(rank + shift) % len(hosts)] for rank, host in enumerate(hosts))
