"""The learning rate follows the settings."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.config.schema import ScheduleConfig
from trainer.schedule import learning_rate

CURVES = {
    "constant": (ScheduleConfig(kind="constant"), [1.0, 1.0, 1.0, 1.0, 1.0]),
    "linear to its floor": (ScheduleConfig(kind="linear", floor=0.2), [1.0, 0.8, 0.6, 0.4, 0.2]),
    "cosine to its floor": (ScheduleConfig(kind="cosine", floor=0.0), [1.0, 0.853553, 0.5, 0.146447, 0.0]),
    "warm-up first": (ScheduleConfig(kind="linear", floor=0.0, warmup=2), [0.5, 1.0, 1.0, 0.5, 0.0]),
    "only warm-up": (ScheduleConfig(warmup=5), [0.2, 0.4, 0.6, 0.8, 1.0]),
    "wsd, linear": (
        ScheduleConfig(kind="wsd", floor=0.2, decay_share=0.4, decay_shape="linear"),
        [1.0, 1.0, 1.0, 0.6, 0.2],
    ),
    "wsd, sqrt, after a warm-up": (
        ScheduleConfig(kind="wsd", floor=0.0, decay_share=0.4, decay_shape="sqrt", warmup=2),
        [0.5, 1.0, 1.0, 0.292893, 0.0],
    ),
    "wsd, cosine": (
        ScheduleConfig(kind="wsd", floor=0.0, decay_share=0.8, decay_shape="cosine"),
        [1.0, 0.853553, 0.5, 0.146447, 0.0],
    ),
    "inverse square root": (
        ScheduleConfig(kind="inverse_sqrt", floor=0.0, warmup=1),
        [1.0, 0.707107, 0.577350, 0.5, 0.447214],
    ),
    "inverse square root above its floor": (
        ScheduleConfig(kind="inverse_sqrt", floor=0.6, warmup=2),
        [0.5, 1.0, 0.816497, 0.707107, 0.632456],
    ),
}


@pytest.mark.parametrize(("schedule", "rates"), CURVES.values(), ids=CURVES)
def test_the_rate_follows_the_schedule(schedule: ScheduleConfig, rates: list[float]) -> None:
    assert [learning_rate(schedule, 3.0, 5, step) / 3.0 for step in range(5)] == pytest.approx(rates, abs=1e-6)


def test_a_run_beyond_its_last_step_stays_at_the_floor() -> None:
    assert learning_rate(ScheduleConfig(floor=0.1), 1.0, 10, 500) == pytest.approx(0.1)
    assert learning_rate(ScheduleConfig(kind="wsd", floor=0.1), 1.0, 10, 500) == pytest.approx(0.1)
    assert learning_rate(ScheduleConfig(kind="inverse_sqrt", warmup=2), 1.0, 10, 500) == pytest.approx(0.1)


@pytest.mark.parametrize("kind", ["wsd", "inverse_sqrt"])
def test_a_longer_run_repeats_the_rates_of_a_shorter_one_before_its_decay(kind: Any) -> None:
    schedule = ScheduleConfig(kind=kind, warmup=5)
    short, long = ([learning_rate(schedule, 1.0, steps, step) for step in range(90)] for steps in (100, 200))
    assert short == long
