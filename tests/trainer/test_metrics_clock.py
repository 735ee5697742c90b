"""Step time by cause, and values read a step late."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trainer.metrics.clock import Clock
from trainer.metrics.device_values import DeviceValues

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def sleep(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Time that passes only here, in whole seconds, so that sums are exact."""
    now = [0.0]
    monkeypatch.setattr("trainer.metrics.clock.time.perf_counter", lambda: now[0])

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    return pass_by


def one_step(clock: Clock, step: int, sleep: Callable[[float], None]) -> None:
    with clock.phase("data"):
        sleep(2)
    with clock.phase("compute"):
        sleep(3)
        with clock.phase("checkpoint"):
            sleep(4)
    sleep(1)
    clock.end(step)


def test_the_inner_phase_owns_its_time_and_the_parts_add_up(sleep):
    clock = Clock(CPU)
    one_step(clock, 1, sleep)
    (split,) = clock.drain()
    assert split.step == 1
    assert (split.data, split.compute, split.communication, split.checkpoint, split.other) == (2, 3, 0, 4, 1)
    assert split.total == 10


def test_the_newest_step_is_kept_back_until_the_next():
    clock = Clock(CPU)
    for step in (1, 2, 3):
        clock.end(step)
        assert [split.step for split in clock.take()] == ([step - 1] if step > 1 else [])
    assert [split.step for split in clock.drain()] == [3]


def test_time_before_the_first_phase_and_after_a_restart_is_in_no_step(sleep):
    clock = Clock(CPU)
    sleep(50)
    one_step(clock, 1, sleep)
    clock.restart()
    sleep(50)
    one_step(clock, 2, sleep)
    assert all(split.other == 1 for split in clock.drain())


def test_a_profiled_share_takes_communication_out_of_compute_and_says_where_it_is_from(sleep):
    clock = Clock(CPU)
    one_step(clock, 1, sleep)
    (before,) = clock.drain()
    clock.exposed(0.25, step=7)
    one_step(clock, 8, sleep)
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


def test_values_come_one_step_late_and_exactly():
    values = DeviceValues(CPU)
    third = torch.tensor(1 / 3)
    values.put(1, {"loss": third, "skipped": torch.tensor(True)})
    assert values.take() == []
    values.put(2, {"loss": torch.tensor(float("inf"))})
    (reading,) = values.take()
    assert (reading.step, reading.values) == (1, {"loss": third.item(), "skipped": 1.0})
    assert [(r.step, r.values["loss"]) for r in values.drain()] == [(2, float("inf"))]


def test_a_value_is_that_of_its_step_even_if_the_tensor_changes():
    values = DeviceValues(CPU)
    loss = torch.tensor(1.0)
    values.put(1, {"loss": loss})
    loss.fill_(2.0)
    assert values.drain()[0].values["loss"] == 1.0
