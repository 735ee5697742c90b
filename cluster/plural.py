"""Numbers with their nouns, as a person reads them."""

from __future__ import annotations


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural: `1 static node`, `2 static nodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
