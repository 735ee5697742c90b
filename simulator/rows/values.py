"""Cells of a row with their checks, and a list of what had to be inferred."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence


class RowError(ValueError):
    """property: value; allowed; fix."""


class RowCells:
    def __init__(self, row: Mapping[str, str]) -> None:
        self._row = row
        self.inferred: list[str] = []

    def text(self, name: str) -> str:
        return (self._row.get(name) or "").strip()

    def required(self, name: str) -> str:
        if not (text := self.text(name)):
            raise RowError(f"{name}: blank; allowed: a value; fill it in")
        return text

    def number(self, name: str, otherwise: float, *, quiet: bool = False) -> float:
        text = self.text(name)
        if not text:
            self.infer(name, otherwise, quiet)
            return otherwise
        try:
            value = float(text)
        except ValueError:
            raise RowError(f"{name}: {text!r}; allowed: a number; correct it") from None
        if not 0 < value < float("inf"):
            raise RowError(f"{name}: {text}; allowed: above 0; correct it")
        return value

    def whole(
        self, name: str, otherwise: int | None, *, quiet: bool = False, low: int = 1, high: int = 10_000_000
    ) -> int:
        """`otherwise` None: the row must have it."""
        text = self.text(name)
        if not text and otherwise is not None:
            self.infer(name, otherwise, quiet)
            return otherwise
        text = self.required(name)
        try:
            value = float(text)
        except ValueError:
            raise RowError(f"{name}: {text!r}; allowed: a whole number; correct it") from None
        if not low <= value <= high or value != int(value):
            raise RowError(f"{name}: {text}; allowed: whole numbers from {low} to {high}; correct it")
        return int(value)

    def choice(self, name: str, allowed: Sequence[str], otherwise: str, *, blank: bool = False) -> str:
        text = self.text(name).lower()
        if not text:
            self.infer(name, otherwise, quiet=blank)
            return otherwise
        if text not in allowed:
            raise RowError(f"{name}: {text!r}; allowed: {', '.join(allowed)}; choose one")
        return text

    def hint(self, name: str, *patterns: str, quiet: bool = False) -> int:
        """The cell, else what the note says, else 0."""
        if value := self.whole(name, 0, quiet=True):
            return value
        for pattern in patterns:
            if found := re.search(pattern, self.text("note")):
                self.infer(name, int(found[1]), quiet)
                return int(found[1])
        return 0

    def infer(self, name: str, value: object, quiet: bool = False) -> None:
        if not quiet:
            self.inferred.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}")
