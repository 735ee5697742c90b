"""A pair of a call site and an error code, and what may come of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["retried", "accepted", "explained"]
"""The call was repeated and succeeded; the command did without it; or it failed and named the code and a fix."""


@dataclass(frozen=True, order=True)
class Pair:
    """An error code at a call site of a command."""

    command: str
    site: str
    code: str

    def __str__(self) -> str:
        return f"{self.command}: {self.site}: {self.code}"
