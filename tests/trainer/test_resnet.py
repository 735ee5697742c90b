"""The stem of a ResNet over blocks of pixels, as GPUs compute it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from trainer.models.pixel_blocks import make_blocks
from trainer.models.resnet import convolve_blocks


@pytest.mark.parametrize("size", [(2, 2), (8, 6), (34, 40)])
def test_a_stem_over_blocks_is_the_same_convolution(size: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(2, 3, *size, dtype=torch.float64, generator=generator)
    weight = torch.randn(4, 3, 7, 7, dtype=torch.float64, generator=generator).requires_grad_()
    blocks, expected = convolve_blocks(make_blocks(images), weight), F.conv2d(images, weight, stride=2, padding=3)
    assert torch.allclose(blocks, expected)
    slopes = [torch.autograd.grad(output.square().sum(), weight)[0] for output in (blocks, expected)]
    assert torch.allclose(*slopes)
