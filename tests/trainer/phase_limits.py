"""Record the limits that the watchdog is given for the phases of a run in this process."""

from __future__ import annotations

from collections import defaultdict

import pytest

from trainer.life.watchdog import Watchdog


def record_limits(monkeypatch: pytest.MonkeyPatch) -> defaultdict[str, list[float | None]]:
    """Return the limits of each phase in their order, which are added from now on; None is the limit of a step."""
    limits: defaultdict[str, list[float | None]] = defaultdict(list)
    beat = Watchdog.beat

    def record(self: Watchdog, step: int, phase: str, limit_s: float | None = None) -> None:
        limits[phase].append(limit_s)
        beat(self, step, phase, limit_s)

    monkeypatch.setattr(Watchdog, "beat", record)
    return limits
