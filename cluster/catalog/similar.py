"""Suggest names for a mistyped one: names with the same beginning first, then similar ones."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

MIN_SIMILARITY = 0.5
# Longer texts are cut to this length, because the time of a comparison grows with it.
MAX_COMPARED_CHARACTERS = 100
# Sizes and prefixes that occur in too many names to distinguish them.
COMMON_PARTS = re.compile(r"aws|ml|.*xlarge.*")
SEPARATORS = re.compile(r"[-._/\s]+")


def find_similar(text: str, names: Iterable[str], limit: int = 3) -> list[str]:
    """Return up to `limit` names, the most likely first; empty if none is similar.

    Among instance types, `p5e` gives p5e.48xlarge, then p5en.48xlarge; among stacks, aws-p5en-lustre.
    """
    candidates, lowered = list(names), text[:MAX_COMPARED_CHARACTERS].lower()
    same_start = [n for n in candidates if lowered and any(end.startswith(lowered) for end in _ends(n))]
    # For example, `p5en.48xlarge` given as the name of a stack: a part of it is a part of the stack's name.
    shared_part = [name for name in candidates if _parts(lowered) & _parts(name)]
    close = get_close_matches(lowered, candidates, n=limit, cutoff=MIN_SIMILARITY)
    similarity = {name: SequenceMatcher(None, lowered, name).ratio() for name in candidates}

    def rank(some: list[str]) -> list[str]:
        return sorted(some, key=lambda name: (lowered not in _parts(name), -similarity[name], name))

    return list(dict.fromkeys([*rank(same_start), *(close or rank(shared_part))]))[:limit]


def _ends(name: str) -> list[str]:
    """Return the suffixes of a name that start at one of its parts: aws-p5en-lustre, p5en-lustre, lustre."""
    starts = [0, *(match.end() for match in SEPARATORS.finditer(name))]
    return [name.lower()[start:] for start in starts]


def _parts(name: str) -> set[str]:
    """Return the parts of a name that distinguish it from others."""
    return {part for part in SEPARATORS.split(name.lower()) if part and not COMMON_PARTS.fullmatch(part)}
