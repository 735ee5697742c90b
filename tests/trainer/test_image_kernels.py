"""The GPU's kernels of residual networks in Triton's interpreter: the same results as torch's operations.

tests/gpu compiles them and runs them at the sizes of real models.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from trainer.models import (
    batch_norm,
    batch_norm_kernel,
    forked_convolution,
    max_pool,
    max_pool_kernel,
    pixel_blocks,
    pixel_blocks_kernel,
)
from trainer.models.pixel_blocks import make_blocks


@pytest.mark.parametrize("shape", [(2, 3, 3, 4), (3, 40, 5, 5)], ids=str)
@pytest.mark.parametrize("kind", ["plain", "rectified", "added"])
def test_batch_norm_equals_that_of_torch(shape: tuple[int, ...], kind: str) -> None:
    values, added, slope = (draw(shape, seed) for seed in (1, 2, 3))
    x = (values + 20).detach().requires_grad_()
    norm, exact = make_norm(shape[1]), make_norm(shape[1]).double()
    rectifies, terms = kind != "plain", [x, added] if kind == "added" else [x]
    # Small tiles and few programs, so that there are several parts and the last one is not full.
    sizes: dict[str, Any] = {"_TILE_VALUES": 128, "_SUM_TILE_VALUES": 64, "_MAX_COLUMNS": 16, "_PROGRAMS": 6}
    sizes["_FINISH_PARTS"] = 2
    with patch.object(batch_norm, "has_kernel", lambda _x, _norm: True), patch.multiple(batch_norm_kernel, **sizes):
        y = batch_norm.normalize_channels(x, norm, *terms[1:], rectifies=rectifies)
        gradients = torch.autograd.grad(y, [*terms, norm.weight, norm.bias], slope)
    exact_terms = [term.detach().double().requires_grad_() for term in terms]
    with patch.object(batch_norm, "has_kernel", lambda _x, _norm: False):
        expected = batch_norm.normalize_channels(exact_terms[0], exact, *exact_terms[1:], rectifies=rectifies)
    references = torch.autograd.grad(expected, [*exact_terms, exact.weight, exact.bias], slope.double())
    assert torch.allclose(y.double(), expected, rtol=1e-4, atol=1e-4)
    for gradient, reference in zip(gradients, references, strict=True):
        assert torch.allclose(gradient.double(), reference, rtol=1e-3, atol=1e-4)
    for name, buffer in norm.named_buffers():
        assert torch.allclose(buffer.double(), exact.get_buffer(name).double(), rtol=1e-4), name


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 5, 8)], ids=str)
def test_maxima_equal_those_of_torch(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    # Few different values: the first of equal maxima gets the gradient.
    values = torch.randint(-2, 3, shape, generator=generator).relu().float()
    x, copy = (values.clone().to(memory_format=torch.channels_last).requires_grad_() for _ in range(2))
    with patch.object(max_pool, "has_kernel", lambda _x: True), patch.object(max_pool_kernel, "_BLOCK_VALUES", 8):
        y = max_pool.pool_maxima(x)
        slope = torch.randint(-9, 9, y.shape, generator=generator).float()
        (gradient,) = torch.autograd.grad(y, x, slope)
    expected = F.max_pool2d(copy, 3, stride=2, padding=1)
    assert torch.equal(y, expected)
    assert torch.equal(gradient, torch.autograd.grad(expected, copy, slope)[0])


@pytest.mark.parametrize("size", [(2, 2), (6, 8)], ids=str)
def test_blocks_of_bytes_equal_those_of_normalised_images(size: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(256, (2, 3, *size), dtype=torch.uint8, generator=generator)
    mean, std = (torch.rand(3, 1, 1, generator=generator) * 50 + 40 for _ in range(2))
    with patch.object(pixel_blocks_kernel, "_BLOCK_VALUES", 32):
        blocks = pixel_blocks_kernel.write_blocks(images, mean, std, torch.float32)
    assert blocks.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(blocks, make_blocks((images - mean) / std))


def test_a_fork_adds_the_gradients_of_its_two_ways() -> None:
    x, conv = draw((2, 8, 5, 6), 1), nn.Conv2d(8, 4, 1, bias=False)
    gradients = []
    for forks in (True, False):
        with patch.object(forked_convolution, "can_fork", lambda *_, forks=forks: forks):
            convolved, shortcut = forked_convolution.fork(2 * x, conv, nn.BatchNorm2d(8))
        outputs = convolved.sin(), shortcut.cos()
        loss = sum(output.square().sum() for output in outputs)
        gradients.append(torch.autograd.grad(loss, [x, conv.weight]))
    for forked, apart in zip(*gradients, strict=True):
        assert torch.allclose(forked, apart, rtol=1e-5, atol=1e-6)


def test_kernels_are_not_given_fake_tensors() -> None:
    """The estimate of memory runs the model with tensors that say they are on a GPU but have no memory."""
    with FakeTensorMode(), torch.device("cuda"):
        x = torch.empty(2, 4, 3, 3).to(memory_format=torch.channels_last).requires_grad_()
        assert x.is_cuda
        assert not batch_norm.has_kernel(x, nn.BatchNorm2d(4))
        assert not max_pool.has_kernel(x)
        assert not pixel_blocks.has_kernel(torch.empty(2, 3, 4, 4, dtype=torch.uint8))


def draw(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return values.to(memory_format=torch.channels_last).requires_grad_()


def make_norm(channels: int) -> nn.BatchNorm2d:
    norm, generator = nn.BatchNorm2d(channels), torch.Generator().manual_seed(4)
    nn.init.normal_(norm.weight, 1.0, 0.3, generator=generator)
    nn.init.normal_(norm.bias, 0.0, 0.3, generator=generator)
    return norm
