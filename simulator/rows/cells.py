"""Read the cells of a row with validation, and record what had to be inferred."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence


class RowError(ValueError):
    """An invalid row; the message names the property, its value, the allowed values and a fix."""


class RowCells:
    """The cells of one row; `inferred` collects property=value of those that were left out."""

    def __init__(self, row: Mapping[str, str]) -> None:
        self._row = row
        self.inferred: list[str] = []

    def text(self, name: str) -> str:
        return (self._row.get(name) or "").strip()

    def required(self, name: str) -> str:
        if not (text := self.text(name)):
            raise RowError(f"{name}: blank; allowed: a value; fill it in")
        return text

    def number(self, name: str, default: float, *, quiet: bool = False) -> float:
        """Return a positive number; `quiet` does not record that it was inferred."""
        text = self.text(name)
        if not text:
            self.infer(name, default, quiet)
            return default
        try:
            value = float(text)
        except ValueError:
            raise RowError(f"{name}: {text!r}; allowed: a number; correct it") from None
        if not 0 < value < float("inf"):
            raise RowError(f"{name}: {text}; allowed: above 0; correct it")
        return value

    def whole(
        self, name: str, default: int | None, *, quiet: bool = False, low: int = 1, high: int = 10_000_000
    ) -> int:
        """Return a whole number; with `default` None the row must have one."""
        text = self.text(name)
        if not text and default is not None:
            self.infer(name, default, quiet)
            return default
        text = self.required(name)
        try:
            value = float(text)
        except ValueError:
            raise RowError(f"{name}: {text!r}; allowed: a whole number; correct it") from None
        if not low <= value <= high or value != int(value):
            raise RowError(f"{name}: {text}; allowed: whole numbers from {low} to {high}; correct it")
        return int(value)

    def choice(self, name: str, allowed: Sequence[str], default: str, *, blank: bool = False) -> str:
        text = self.text(name).lower()
        if not text:
            self.infer(name, default, quiet=blank)
            return default
        if text not in allowed:
            raise RowError(f"{name}: {text!r}; allowed: {', '.join(allowed)}; choose one")
        return text

    def hint(self, name: str, *patterns: str, quiet: bool = False) -> int:
        """Return the cell, else what a pattern finds in the note, else 0."""
        if value := self.whole(name, 0, quiet=True):
            return value
        for pattern in patterns:
            if match := re.search(pattern, self.text("note")):
                self.infer(name, int(match[1]), quiet)
                return int(match[1])
        return 0

    def infer(self, name: str, value: object, quiet: bool = False) -> None:
        if not quiet:
            self.inferred.append(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}")
