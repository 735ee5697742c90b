"""The maximum over 3x3 pixels by its own kernels on a GPU, equal to torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.gpu.short_run import DEVICE
from trainer.models.max_pool import has_kernel, pool_maxima


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 5, 8), (3, 64, 12, 13), (2, 65, 7, 7)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_maxima_and_gradients_equal_those_of_torch(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    generator = torch.Generator(DEVICE).manual_seed(1)
    # Few different values, with zeros as after a ReLU: the first of equal maxima gets the gradient.
    values = torch.randint(-2, 3, shape, device=DEVICE, generator=generator).relu().to(dtype)
    x, copy = (values.clone().to(memory_format=torch.channels_last).requires_grad_() for _ in range(2))
    assert has_kernel(x)
    y, expected = pool_maxima(x), F.max_pool2d(copy, 3, stride=2, padding=1)
    assert torch.equal(y, expected)
    slope = torch.randint(-9, 9, y.shape, device=DEVICE, generator=generator).to(dtype)
    assert torch.equal(*(torch.autograd.grad(output, of, slope)[0] for output, of in ((y, x), (expected, copy))))


def test_a_nan_wins() -> None:
    x = torch.zeros(1, 2, 8, 8, device=DEVICE).to(memory_format=torch.channels_last)
    x[0, 1, 3, 3] = torch.nan
    y = pool_maxima(x.requires_grad_())
    assert y[0, 1].isnan().sum() == 4
    assert not y[0, 0].isnan().any()
