"""A save leaves the GPU through pinned memory on a stream of its own, beside the next step, and is not torn by it."""

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
# Below this a copy is a loss on its way to the log, not a weight.
LARGE_NS = 100_000


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    made = make(tmp_path)
    for _ in range(2):
        made.train_step(samples())
    made.prepare_saves()
    yield made
    made.close()


def test_the_buffer_is_memory_that_the_gpu_knows(trainer: Trainer) -> None:
    stage = trainer.checkpoints._channel._buffer
    assert stage is not None
    assert stage._image.is_pinned()
    assert stage._image.numel() > 3 * 4 * LAYERS * WIDTH**2


def test_a_save_is_copied_beside_the_next_step(trainer: Trainer) -> None:
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
    hidden = shared(copies, kernels)
    print(f"\n{copied / 1e6:.1f} ms of copies, {hidden / copied:.0%} of it beside kernels")
    assert hidden > 0.5 * copied


def test_what_is_saved_is_the_state_before_the_next_update(trainer: Trainer, tmp_path: Path) -> None:
    before = {name: tensor.detach().clone() for name, tensor in trainer._step.saved_tensors().items()}
    trainer.start_save(None, {})
    for _ in range(3):
        trainer.train_step(samples())
    assert trainer.finish_save(None)
    assert [event.kind for event in trainer.checkpoints.poll()] == ["published"]
    changed = trainer._step.saved_tensors()
    assert any(not torch.equal(changed[name], tensor) for name, tensor in before.items())
    again = make(tmp_path)
    assert again.load_checkpoint() == {}
    loaded = again._step.tensors()
    assert [name for name, tensor in before.items() if not torch.equal(loaded[name], tensor)] == []
    again.close()


def make(folder: Path) -> Trainer:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    optimizer = OptimizerConfig(lr=1e-4)
    return Trainer(model, loss=nn.functional.mse_loss, optimizer=optimizer, folder=folder, device=DEVICE.type)


def samples() -> dict[str, torch.Tensor]:
    inputs = torch.randn(ROWS, WIDTH, device=DEVICE)
    return {"inputs": inputs, "targets": inputs}


def shared(left: list[Any], right: list[Any]) -> int:
    """Nanoseconds in which both run."""
    first, second = (
        merge_intervals((e.start_ns(), e.start_ns() + e.duration_ns()) for e in side) for side in (left, right)
    )
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in first for b in second)
