"""Which names a person may have meant: those that begin alike before those that only look alike."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

ALIKE = 0.5
# Sizes and prefixes that are common to too many names to tell them apart.
COMMON = re.compile(r"aws|ml|.*xlarge.*")
SEPARATORS = re.compile(r"[-._/\s]+")


def near(word: str, known: Iterable[str], most: int = 3) -> list[str]:
    """`p5e` of instance types is p5e.48xlarge, then p5en.48xlarge; of stacks aws-p5en-lustre. Empty for anything."""
    names, plain = list(known), word.lower()
    begun = [name for name in names if plain and any(part.startswith(plain) for part in _ends(name))]
    # `p5en.48xlarge` where stacks are asked for: a part of the word is a part of their names.
    shared = [name for name in names if _parts(plain) & _parts(name)]
    close = get_close_matches(plain, names, n=most, cutoff=ALIKE)
    likeness = {name: SequenceMatcher(None, plain, name).ratio() for name in names}

    def ranked(some: list[str]) -> list[str]:
        return sorted(some, key=lambda name: (plain not in _parts(name), -likeness[name], name))

    return list(dict.fromkeys([*ranked(begun), *(close or ranked(shared))]))[:most]


def _ends(name: str) -> list[str]:
    """The name from each of its parts on: aws-p5en-lustre, p5en-lustre, lustre."""
    starts = [0, *(match.end() for match in SEPARATORS.finditer(name))]
    return [name.lower()[start:] for start in starts]


def _parts(name: str) -> set[str]:
    """Return the parts of a name that tell it from others."""
    return {part for part in SEPARATORS.split(name.lower()) if part and not COMMON.fullmatch(part)}
