"""Errors in a configuration or in command-line arguments, worded so that the reader can fix them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LARGEST_DIVISOR = 65_536


@dataclass(frozen=True)
class ConfigProblem:
    """One invalid setting or argument: which one, what is wrong with it, and how to fix it."""

    where: str
    """Dotted name of the setting, an option, or a file."""
    message: str
    fix: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}; {self.fix}" if self.fix else text


class ConfigError(Exception):
    """All problems of a configuration that the user can fix; raised before any GPU time is spent."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        self.problems = list(problems)
        super().__init__(self.problems)

    @property
    def summary(self) -> str:
        count = len(self.problems)
        return "1 setting needs fixing" if count == 1 else f"{count} settings need fixing"

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class FolderInUseError(ConfigError):
    """The folder of the run belongs to another run, which is alive: nothing may be written there, no outcome either."""


def list_nearest_multiples(number: int, factor: int) -> str:
    """Return the multiples of `factor` just below and above `number`, as "24 or 32"."""
    below = number // factor * factor
    return f"{below} or {below + factor}" if below else str(factor)


def list_divisors(number: int, factor: int = 1) -> str:
    """Return the divisors of `number` that are multiples of `factor`, separated by commas.

    The search stops at LARGEST_DIVISOR, so that a mistyped, huge number does not take minutes.
    """
    return ", ".join(str(n) for n in range(factor, min(number, LARGEST_DIVISOR) + 1, factor) if number % n == 0)
