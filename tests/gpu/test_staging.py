"""A save is copied through pinned memory on its own stream during the next step, and that step does not change it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from tests.gpu.short_run import DEVICE
from trainer.api import Trainer
from trainer.config.schema import OptimizerConfig
from trainer.metrics.communication import merge_intervals

WIDTH, LAYERS, ROWS = 4096, 4, 16384
# Shorter copies are losses for the log, not weights.
LARGE_NS = 100_000


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    trainer = make_trainer(tmp_path)
    for _ in range(2):
        trainer.train_step(samples())
    trainer.prepare_saves()
    yield trainer
    trainer.close()


def test_the_buffer_is_pinned(trainer: Trainer) -> None:
    buffer = trainer.checkpoints._channel._buffer
    assert buffer is not None
    assert buffer._image.is_pinned()
    assert buffer._image.numel() > 3 * 4 * LAYERS * WIDTH**2


def test_a_save_is_copied_during_the_next_step(trainer: Trainer) -> None:
    data = samples()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        trainer.start_save(None, {})
        trainer.train_step(data)
        torch.cuda.synchronize()
    work = [e for e in profiler.profiler.kineto_results.events() if str(e.device_type()) == "DeviceType.CUDA"]
    work = [event for event in work if not event.is_user_annotation()]
    copies = [event for event in work if "DtoH" in event.name() and event.duration_ns() > LARGE_NS]
    kernels = [event for event in work if not event.name().startswith(("Memcpy", "Memset"))]
    assert len(copies) >= 3 * LAYERS
    assert all("Pageable" not in event.name() for event in copies), {event.name() for event in copies}
    assert not {e.device_resource_id() for e in copies} & {e.device_resource_id() for e in kernels}
    copied = sum(event.duration_ns() for event in copies)
    hidden = measure_overlap(copies, kernels)
    print(f"\n{copied / 1e6:.1f} ms of copies, {hidden / copied:.0%} of it during kernels")
    assert hidden > 0.5 * copied


def test_a_save_contains_the_state_before_the_next_update(trainer: Trainer, tmp_path: Path) -> None:
    before = {name: tensor.detach().clone() for name, tensor in trainer._step.saved_tensors().items()}
    trainer.start_save(None, {})
    for _ in range(3):
        trainer.train_step(samples())
    assert trainer.finish_save(None)
    assert [event.kind for event in trainer.checkpoints.poll()] == ["published"]
    changed = trainer._step.saved_tensors()
    assert any(not torch.equal(changed[name], tensor) for name, tensor in before.items())
    again = make_trainer(tmp_path)
    assert again.load_checkpoint() == {}
    loaded = again._step.tensors()
    assert [name for name, tensor in before.items() if not torch.equal(loaded[name], tensor)] == []
    again.close()


def make_trainer(folder: Path) -> Trainer:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    optimizer = OptimizerConfig(lr=1e-4)
    return Trainer(model, loss=nn.functional.mse_loss, optimizer=optimizer, folder=folder, device=DEVICE.type)


def samples() -> dict[str, torch.Tensor]:
    inputs = torch.randn(ROWS, WIDTH, device=DEVICE)
    return {"inputs": inputs, "targets": inputs}


def measure_overlap(left: list[Any], right: list[Any]) -> int:
    """Return the nanoseconds in which both run."""
    first, second = (
        merge_intervals((e.start_ns(), e.start_ns() + e.duration_ns()) for e in side) for side in (left, right)
    )
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in first for b in second)
