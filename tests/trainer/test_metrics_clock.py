"""Step times by cause, and values that are read one step late."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trainer.metrics.clock import Clock
from trainer.metrics.device_values import DeviceValues

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def sleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Replace the clock by one that moves only on request, in whole seconds, so that sums are exact."""
    now = [0.0]
    monkeypatch.setattr("trainer.metrics.clock.time.perf_counter", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


def run_step(clock: Clock, step: int, sleep: Callable[[float], None]) -> None:
    with clock.phase("data"):
        sleep(2)
    with clock.phase("compute"):
        sleep(3)
        with clock.phase("checkpoint"):
            sleep(4)
    sleep(1)
    clock.end(step)


def test_time_counts_for_the_innermost_phase_and_the_parts_add_up(sleep):
    clock = Clock(CPU)
    run_step(clock, 1, sleep)
    (times,) = clock.drain()
    assert times.step == 1
    assert (times.data, times.compute, times.communication, times.checkpoint, times.other) == (2, 3, 0, 4, 1)
    assert times.total == 10


def test_the_newest_step_is_not_returned_before_the_next():
    clock = Clock(CPU)
    for step in (1, 2, 3):
        clock.end(step)
        assert [times.step for times in clock.take()] == ([step - 1] if step > 1 else [])
    assert [times.step for times in clock.drain()] == [3]


def test_time_before_the_first_phase_and_after_a_restart_belongs_to_no_step(sleep):
    clock = Clock(CPU)
    sleep(50)
    run_step(clock, 1, sleep)
    clock.restart()
    sleep(50)
    run_step(clock, 2, sleep)
    assert all(times.other == 1 for times in clock.drain())


def test_a_profiled_share_moves_time_from_compute_to_communication(sleep):
    clock = Clock(CPU)
    run_step(clock, 1, sleep)
    (before,) = clock.drain()
    clock.set_exposed_share(0.25, step=7)
    run_step(clock, 8, sleep)
    (after,) = clock.drain()
    assert (before.communication, before.source) == (0.0, "not measured")
    assert after.communication == pytest.approx((after.compute + after.communication) / 4)
    assert after.source == "profile of step 7"
    assert after.own == pytest.approx(after.total - after.communication)


def test_a_phase_that_raises_is_closed(sleep):
    clock = Clock(CPU)
    with pytest.raises(StopIteration), clock.phase("data"):
        raise StopIteration
    sleep(20)
    clock.end(1)
    assert clock.drain()[0].other == 20


def test_values_are_exact_and_one_step_late():
    values = DeviceValues(CPU)
    third = torch.tensor(1 / 3)
    values.put(1, {"loss": third, "skipped": torch.tensor(True)})
    assert values.take() == []
    values.put(2, {"loss": torch.tensor(float("inf"))})
    (reading,) = values.take()
    assert (reading.step, reading.values) == (1, {"loss": third.item(), "skipped": 1.0})
    assert [(r.step, r.values["loss"]) for r in values.drain()] == [(2, float("inf"))]


def test_a_value_does_not_change_with_its_tensor():
    values = DeviceValues(CPU)
    loss = torch.tensor(1.0)
    values.put(1, {"loss": loss})
    loss.fill_(2.0)
    assert values.drain()[0].values["loss"] == 1.0
