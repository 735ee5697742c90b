"""The learning rate follows the settings."""

from __future__ import annotations

import pytest

from trainer.config.schema import ScheduleConfig
from trainer.schedule import learning_rate

CURVES = {
    "constant": (ScheduleConfig(kind="constant"), [1.0, 1.0, 1.0, 1.0, 1.0]),
    "linear to its floor": (ScheduleConfig(kind="linear", floor=0.2), [1.0, 0.8, 0.6, 0.4, 0.2]),
    "cosine to its floor": (ScheduleConfig(kind="cosine", floor=0.0), [1.0, 0.853553, 0.5, 0.146447, 0.0]),
    "warm-up first": (ScheduleConfig(kind="linear", floor=0.0, warmup=2), [0.5, 1.0, 1.0, 0.5, 0.0]),
    "only warm-up": (ScheduleConfig(warmup=5), [0.2, 0.4, 0.6, 0.8, 1.0]),
}


@pytest.mark.parametrize(("schedule", "rates"), CURVES.values(), ids=CURVES)
def test_the_rate_follows_the_schedule(schedule: ScheduleConfig, rates: list[float]) -> None:
    assert [learning_rate(schedule, 3.0, 5, step) / 3.0 for step in range(5)] == pytest.approx(rates, abs=1e-6)


def test_a_run_beyond_its_last_step_stays_at_the_floor() -> None:
    assert learning_rate(ScheduleConfig(floor=0.1), 1.0, 10, 500) == pytest.approx(0.1)
