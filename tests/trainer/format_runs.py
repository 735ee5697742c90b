"""Short runs with stored formats on any device: tests/trainer has them on the CPU, tests/gpu on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.gpu_cases import make_step
from tests.trainer.checkpoint_state import save_and_wait
from tests.trainer.curves import global_batch
from tests.trainer.test_stored_formats import FORMATS, LOSS_TOLERANCE, SETTINGS, STEPS, count_bytes, reference
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.config.load import load
from trainer.config.schema import Config, OptimizerConfig
from trainer.optimizers.optimizer import Optimizer
from trainer.optimizers.sizes import count_state_bytes
from trainer.parallel.modules import list_embeddings
from trainer.state_formats import list_state_formats
from trainer.step import Step

MICRO = 2
LARGE = (1024, 512)
"""Shape of a weight for which the AdamW kernel is used on a GPU."""
RATE = 1e-3


def load_formats(name: str, *more: str) -> Config:
    """Return the settings of a small Llama with these formats."""
    return load("tiny-llama", [*SETTINGS, "parallel.strategy=single", *FORMATS[name], *more])


def train(config: Config, device: torch.device, steps: range = range(STEPS), step: Step | None = None) -> list[float]:
    """Return the losses of steps, of a new run or of the given one."""
    step = step or make_step(config, device)
    losses = []
    for index in steps:
        batch = {key: value.to(device) for key, value in global_batch(config, index).items()}
        losses.append(float(step.run(batch, MICRO).loss))
    return losses


def check_losses(name: str, device: torch.device, *more: str) -> None:
    """Check that each of 20 losses is close to that of fp32 weights and gradients, and is not the same run."""
    settings = [*SETTINGS, "parallel.strategy=single", *reference(FORMATS[name])]
    expected = train(load("tiny-llama", settings), device)
    losses = train(load_formats(name, *more), device)
    assert losses == pytest.approx(expected, rel=LOSS_TOLERANCE)
    assert losses != expected


def check_resume(name: str, device: torch.device, folder: Path) -> None:
    """Check that a run which loads a checkpoint ends with the bits of one that was not interrupted."""
    config = load_formats(name)
    whole, resumed = make_step(config, device), make_step(config, device)
    train(config, device, range(3), whole)
    checkpoints = Checkpoints(folder)
    save_and_wait(checkpoints, 3, whole.saved_tensors())
    train(config, device, range(3, 6), whole)
    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    assert not checkpoints.load(checkpoint, resumed.tensors())
    checkpoints.close()
    resumed.load_state({"step": 3})
    train(config, device, range(3, 6), resumed)
    after = resumed.tensors()
    assert [key for key, value in whole.tensors().items() if not torch.equal(value, after[key])] == []


def expect_bytes(config: Config, step: Step) -> int:
    """Return the bytes of weights, gradients and optimizer state by the formats of the settings."""
    formats = list_state_formats(config)
    shapes = [(name, tuple(value.shape)) for name, value in step.engine.named_parameters()]
    values = sum(value.numel() for _, value in step.engine.named_parameters())
    state = count_state_bytes(shapes, config.optimizer, list_embeddings(step.engine.modules))
    return (formats.weight_bytes + formats.gradient_bytes) * values + state


def check_stored_bytes(config: Config, step: Step) -> None:
    """Check the bytes of all stored tensors before an update; call it as `step.before_update`."""
    weights = [value for _, value in step.engine.named_parameters()]
    state = [value for name, value in step.optimizer.tensors().items() if name != "updates"]
    assert sum(map(count_bytes, [*weights, *step.optimizer.gradients(), *state])) == expect_bytes(config, step)


def check_updates(device: torch.device, *, has_master: bool, gradients: torch.dtype) -> None:
    """Check AdamW of bf16 weights against torch's in double precision: exact copies, or a mean without bias."""
    generator = torch.Generator(device).manual_seed(1)
    settings = OptimizerConfig(weights="bf16", master=has_master, weight_decay=0.1)
    weight = torch.nn.Parameter(torch.randn(LARGE, device=device, generator=generator).bfloat16())
    weight.grad_dtype = gradients
    exact = weight.detach().double().requires_grad_()
    optimizer = Optimizer([("weight", weight)], settings)
    adamw = torch.optim.AdamW(
        [exact], lr=RATE, betas=(settings.beta1, settings.beta2), eps=settings.eps, weight_decay=0.1
    )
    for index in range(5):
        # Mostly positive: updates that cancel out on average could be lost unnoticed.
        weight.grad = (torch.randn(LARGE, device=device, generator=generator) + 1).to(gradients)
        exact.grad = weight.grad.double() / 2
        optimizer.step(RATE, torch.full((), 2.0, device=device), torch.zeros((), device=device), seed=index)
        adamw.step()
    if has_master:
        master = optimizer.tensors()["weight.master"]
        assert (master.double() - exact).abs().max() < 3e-6
        # Rounded to the nearest value, which has a bias after small updates, but one that does not add up.
        assert torch.equal(weight, master.bfloat16())
        return
    difference = weight.detach().double() - exact.detach()
    # Five roundings of weights up to 4, of which the last bit is 1/64, in either direction; their mean cancels out.
    assert difference.abs().max() < 5 / 64
    assert float(difference.mean()) == pytest.approx(0, abs=1e-4)


def check_skipped_update(device: torch.device, *, has_master: bool) -> None:
    """Check that an update with non-finite gradients changes neither a bf16 weight nor its state."""
    weight = torch.nn.Parameter(torch.randn(LARGE, device=device).bfloat16())
    optimizer = Optimizer([("weight", weight)], OptimizerConfig(weights="bf16", master=has_master))
    before = {name: value.clone() for name, value in {"weight": weight.detach(), **optimizer.tensors()}.items()}
    weight.grad = torch.full_like(weight, torch.nan)
    optimizer.step(RATE, None, torch.ones((), device=device), seed=3)
    after = {"weight": weight.detach(), **optimizer.tensors()}
    assert [name for name, value in before.items() if not torch.equal(value, after[name])] == []
