"""A check: commands whose output is judged against what the node should have. Judging is pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path


@dataclass(frozen=True)
class Expected:
    """What this node should have; bootstrap writes it from the inventory."""

    gpus: int = 0
    nvlinks: int = 0
    """Active NVLink links of each GPU; 0 where the machine has none."""
    efa: int = 0
    mounts: Sequence[str] = ()
    software: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By component, the version it had when the node was set up, and the file that says so."""
    disabled: Sequence[str] = ()
    """Names of checks that are switched off on this cluster."""

    @staticmethod
    def read(path: Path) -> Expected:
        known = json.loads(path.read_text(encoding="utf-8"))
        return Expected(**{one.name: known[one.name] for one in fields(Expected) if one.name in known})


@dataclass(frozen=True)
class Check:
    name: str
    applies: Callable[[Expected], bool]
    command: Callable[[Expected], str]
    """Shell text; what it prints is judged, an exit code other than 0 is a problem by itself."""
    judge: Callable[[str, Expected], list[str]]
    before_jobs: bool = True
    """Also run in the prolog, where every job waits for it."""


@dataclass(frozen=True)
class Problem:
    check: str
    text: str

    def __str__(self) -> str:
        return f"{self.check}: {self.text}"


@dataclass(frozen=True)
class Answer:
    """What a command said, or that it said nothing in time."""

    output: str = ""
    error: str = ""
    code: int | None = None
    after_s: float = 0.0


def judged(check: Check, answer: Answer, expected: Expected) -> list[Problem]:
    """No answer is a problem: a check that fails open hides exactly the machines it is there for."""
    if answer.code is None:
        return [Problem(check.name, f"no answer within {answer.after_s:g} s")]
    if answer.code != 0:
        said = (answer.error.strip() or answer.output.strip()).splitlines()
        return [Problem(check.name, f"exit code {answer.code}" + (f", {said[-1].strip()}" if said else ""))]
    return [Problem(check.name, text) for text in check.judge(answer.output, expected)]
