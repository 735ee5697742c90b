"""Step time by cause, and values read a step late."""

from __future__ import annotations

import time

import pytest
import torch

from trainer.metrics.clock import Clock
from trainer.metrics.device_values import DeviceValues

CPU = torch.device("cpu")


def one_step(clock: Clock, step: int) -> None:
    with clock.phase("data"):
        time.sleep(0.02)
    with clock.phase("compute"):
        time.sleep(0.03)
        with clock.phase("checkpoint"):
            time.sleep(0.04)
    time.sleep(0.01)
    clock.end(step)


def test_the_inner_phase_owns_its_time_and_the_parts_add_up():
    clock = Clock(CPU)
    one_step(clock, 1)
    (split,) = clock.drain()
    assert split.step == 1
    assert split.data >= 0.02
    assert 0.03 <= split.compute < 0.06
    assert split.checkpoint >= 0.04
    assert split.other >= 0.01
    parts = split.data + split.compute + split.communication + split.checkpoint + split.other
    assert split.total == pytest.approx(parts)


def test_the_newest_step_is_kept_back_until_the_next():
    clock = Clock(CPU)
    for step in (1, 2, 3):
        clock.end(step)
        assert [split.step for split in clock.take()] == ([step - 1] if step > 1 else [])
    assert [split.step for split in clock.drain()] == [3]


def test_time_before_the_first_phase_and_after_a_restart_is_in_no_step():
    clock = Clock(CPU)
    time.sleep(0.05)
    one_step(clock, 1)
    clock.restart()
    time.sleep(0.05)
    one_step(clock, 2)
    assert all(split.other < 0.04 for split in clock.drain())


def test_a_profiled_share_takes_communication_out_of_compute_and_says_where_it_is_from():
    clock = Clock(CPU)
    one_step(clock, 1)
    (before,) = clock.drain()
    clock.exposed(0.25, step=7)
    one_step(clock, 8)
    (after,) = clock.drain()
    assert (before.communication, before.source) == (0.0, "not measured")
    assert after.communication == pytest.approx((after.compute + after.communication) / 4)
    assert after.source == "profile of step 7"
    assert after.own == pytest.approx(after.total - after.communication)


def test_a_phase_that_raises_is_closed():
    clock = Clock(CPU)
    with pytest.raises(StopIteration), clock.phase("data"):
        raise StopIteration
    time.sleep(0.02)
    clock.end(1)
    assert clock.drain()[0].other >= 0.02


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
