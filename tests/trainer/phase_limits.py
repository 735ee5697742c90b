"""Record the limits that the watchdog is given for the phases of a run in this process."""

from __future__ import annotations

from collections import defaultdict

import pytest

from trainer.life.watchdog import Watchdog


def record_limits(monkeypatch: pytest.MonkeyPatch) -> defaultdict[str, set[float | None]]:
    """Return the limits of each phase, which are added from now on; None is the limit of a step."""
    limits: defaultdict[str, set[float | None]] = defaultdict(set)
    beat = Watchdog.beat

    def record(self: Watchdog, step: int, phase: str, limit_s: float | None = None) -> None:
        limits[phase].add(limit_s)
        beat(self, step, phase, limit_s)

    monkeypatch.setattr(Watchdog, "beat", record)
    return limits
