"""AdamW by its own kernel on a GPU, against torch's in double precision."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.short_run import DEVICE
from trainer.config.schema import MomentFormat, OptimizerConfig
from trainer.optimizers import adamw
from trainer.optimizers.moments import make_moment
from trainer.optimizers.optimizer import Optimizer
from trainer.optimizers.slot import Slot

SHAPES = {"large": (700, 1001), "small": (33,), "other": (1024, 512)}
CONFIG = OptimizerConfig(name="adamw", weight_decay=0.1)


@pytest.mark.parametrize("divides", [True, False])
def test_updates_equal_those_of_torch(divides: bool) -> None:
    generator = torch.Generator(DEVICE).manual_seed(1)
    weights = {
        name: torch.randn(shape, device=DEVICE, generator=generator).requires_grad_() for name, shape in SHAPES.items()
    }
    exact = {name: weight.detach().double().requires_grad_() for name, weight in weights.items()}
    optimizer = Optimizer(weights.items(), CONFIG)
    groups = [
        {"params": [value for value in exact.values() if value.ndim > 1], "weight_decay": 0.1},
        {"params": [exact["small"]], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=1e-3, betas=(CONFIG.beta1, CONFIG.beta2), eps=CONFIG.eps)
    divide = torch.full((), 2.0, device=DEVICE) if divides else None
    for _ in range(5):
        for name, weight in weights.items():
            weight.grad = torch.randn(SHAPES[name], device=DEVICE, generator=generator)
            exact[name].grad = weight.grad.double() / (2 if divides else 1)
        optimizer.step(1e-3, divide, torch.zeros((), device=DEVICE))
        reference.step()
    for name, weight in weights.items():
        # Five updates, each rounded to half a unit in the last place of fp32, which is 2.4e-7 for weights up to 8.
        assert (weight.double() - exact[name]).abs().max() < 3e-6, name


def test_a_skipped_update_changes_nothing() -> None:
    weight = torch.randn(1024, 1024, device=DEVICE).requires_grad_()
    optimizer = Optimizer([("weight", weight)], CONFIG)
    before = weight.detach().clone()
    weight.grad = torch.full_like(weight, torch.nan)
    optimizer.step(1e-3, None, torch.ones((), device=DEVICE))
    assert torch.equal(weight, before)
    assert not any(tensor.any() for tensor in optimizer.tensors().values())


def test_large_contiguous_parameters_use_the_kernel() -> None:
    def make_slot(shape: tuple[int, ...], moments: MomentFormat = "fp32", *, transposed: bool = False) -> Slot:
        parameter = torch.nn.Parameter(
            torch.zeros(shape, device=DEVICE).t() if transposed else torch.zeros(shape, device=DEVICE)
        )
        parameter.grad = torch.zeros_like(parameter)
        return Slot("weight", parameter, {"first": make_moment(parameter, moments, is_signed=True)})

    assert adamw.has_kernel(make_slot((1024, 1024)))
    assert adamw.has_kernel(make_slot((1024, 1024), "bf16"))
    assert not adamw.has_kernel(make_slot((1024, 1024), "int8"))
    assert not adamw.has_kernel(make_slot((1024,)))
    assert not adamw.has_kernel(make_slot((1024, 512), transposed=True))
