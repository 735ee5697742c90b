"""A clock that only sleeping moves on, for code that waits."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import ModuleType

import pytest


@dataclass
class Clock:
    """Stands in for the module `time`."""

    now: float = 1000.0
    slept: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def install_clock(monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> Clock:
    """Let modules see a new clock as `time`, and return it."""
    clock = Clock()
    for module in modules:
        monkeypatch.setattr(module, "time", clock)
    return clock
