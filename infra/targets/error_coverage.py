"""Rehearsals of errors: which part of all pairs of a call and an error to cover, and how much of it is covered."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path


@dataclass(frozen=True)
class ErrorOptions:
    """The share of all pairs that a rehearsal of errors covers."""

    errors: str
    """`all`, `sample` (one of those that are handled alike), or codes separated by commas."""
    seed: int = 1
    """Decides which pairs come first."""
    commands: str = "all"
    """Names of the commands whose calls meet errors, separated by commas, or `all`."""
    minutes: float | None = None
    """No error is injected after that time; None: until all pairs are covered. 0 only counts."""


@dataclass(frozen=True)
class CommandCoverage:
    """Counts of a command: its kinds of calls, their pairs with the chosen errors, and how many are covered."""

    command: str
    calls: int
    pairs: int
    now: int
    """Covered by this rehearsal."""
    ever: int
    """Covered by this rehearsal or an earlier one."""
    classes: int
    """Pairs of a kind of call and a class of errors, which are handled alike."""
    classes_ever: int
    """Classes at calls of which at least one error is covered."""


@dataclass(frozen=True)
class ErrorCoverage:
    """Which errors of the cloud met which calls of muster."""

    commands: tuple[CommandCoverage, ...]
    codes: int
    """Number of chosen error codes."""
    calls: Path
    """File with a line for each kind of call and what came of its errors."""
    record: Path
    """File with all pairs that rehearsals of the stack have covered."""
    problems: tuple[str, ...]
    """Errors that were not handled as they should be."""

    @property
    def total(self) -> CommandCoverage:
        """Return the sums of all commands."""
        counts = [astuple(entry)[1:] for entry in self.commands]
        return CommandCoverage("all", *map(sum, zip(*counts, strict=True)))
