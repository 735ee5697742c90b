"""Batch norm with a sum and a ReLU by its own kernels on a GPU, against torch's in double precision."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.gpu.short_run import DEVICE
from trainer.models import batch_norm
from trainer.models.batch_norm import has_kernel, normalize_channels

SHAPES = [(2, 3, 5, 7), (8, 64, 30, 31), (4, 300, 9, 9), (4, 2048, 7, 7), (64, 64, 56, 56)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["plain", "rectified", "added"])
def test_values_and_gradients_equal_those_of_torch(shape: tuple[int, ...], dtype: torch.dtype, kind: str) -> None:
    x, added, slope = (draw(shape, seed, dtype) for seed in (1, 2, 3))
    # Far from zero, where squares have no digits left for the variance.
    x = (x + 20).detach().requires_grad_()
    norm, exact = make_norm(shape[1]), make_norm(shape[1]).double()
    rectifies = kind != "plain"
    terms = [x, added] if kind == "added" else [x]
    assert has_kernel(x, norm)
    y = normalize_channels(*[x, norm, *terms[1:]], rectifies=rectifies)
    exact_terms = [term.detach().double().requires_grad_() for term in terms]
    expected: Any = exact(exact_terms[0]) + sum(exact_terms[1:])
    # The sign of a value near zero depends on rounding.
    slope = torch.where(expected.abs() < 1e-4, 0.0, slope).detach()
    expected = expected.relu() if rectifies else expected
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    assert distance(y, expected) < tolerance
    weights = [norm.weight, norm.bias]
    gradients = torch.autograd.grad(y, [*terms, *weights], slope)
    references = torch.autograd.grad(expected, [*exact_terms, exact.weight, exact.bias], slope.double())
    for gradient, reference in zip(gradients, references, strict=True):
        assert distance(gradient, reference) < 2 * tolerance
    assert distance(norm.running_mean, exact.running_mean) < 1e-5
    assert distance(norm.running_var, exact.running_var) < 1e-3
    assert norm.num_batches_tracked == exact.num_batches_tracked


def test_two_runs_are_the_same_to_the_bit() -> None:
    results = []
    for _ in range(2):
        x = draw((64, 64, 28, 28), 1, torch.bfloat16)
        norm = make_norm(64)
        y = normalize_channels(x, norm)
        results.append([y, *torch.autograd.grad(y.float().square().sum(), [x, norm.weight, norm.bias])])
    assert all(torch.equal(first, second) for first, second in zip(*results, strict=True))


def test_a_nan_is_not_hidden() -> None:
    x = draw((2, 16, 8, 8), 1, torch.float32).detach()
    x[0, 3, 2, 2] = torch.nan
    assert normalize_channels(x, make_norm(16))[:, 3].isnan().all()


def test_other_layouts_and_evaluation_use_torch() -> None:
    x, norm = draw((2, 16, 8, 8), 1, torch.float32), make_norm(16)
    assert not has_kernel(x.contiguous(), norm)
    assert not has_kernel(x, norm.eval())
    assert not has_kernel(x.cpu(), make_norm(16).cpu())
    assert batch_norm.normalize_channels(x, norm).shape == x.shape


def draw(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> torch.Tensor:
    values = torch.randn(shape, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(seed))
    return values.to(dtype).to(memory_format=torch.channels_last).requires_grad_()


def make_norm(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels).to(DEVICE)
    generator = torch.Generator(DEVICE).manual_seed(4)
    nn.init.normal_(norm.weight, 1.0, 0.3, generator=generator)
    nn.init.normal_(norm.bias, 0.0, 0.3, generator=generator)
    return norm


def distance(value: Any, reference: Any) -> float:
    return float((value.double() - reference).norm() / reference.norm())
