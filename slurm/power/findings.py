"""Something that does not agree between Slurm and EC2, and since when. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Rule = Literal["orphan", "lost", "never-came", "failed-set-up", "replace", "start"]


@dataclass(frozen=True)
class Finding:
    rule: Rule
    subject: str
    """A node's name, or an instance id."""
    why: str
    grace_s: float
    """Slurm and EC2 learn of a change one after the other: only what stays like this for so long is wrong."""

    @property
    def key(self) -> str:
        return f"{self.rule} {self.subject}"


def ripe(findings: Iterable[Finding], since: Mapping[str, float], now: float) -> tuple[list[Finding], dict[str, float]]:
    """Those to act on now, and when each that still stands was seen first."""
    found = list(findings)
    first = {one.key: since.get(one.key, now) for one in found}
    return [one for one in found if now - first[one.key] >= one.grace_s], first
