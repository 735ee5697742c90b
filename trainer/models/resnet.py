"""Residual convolutional networks (https://arxiv.org/abs/1512.03385), with the stride on a bottleneck's 3x3 layer."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from trainer.config.models import ResNetConfig
from trainer.models.batch_norm import normalize_channels
from trainer.models.forked_convolution import fork
from trainer.models.max_pool import pool_maxima
from trainer.models.pixel_blocks import BLOCK_VALUES, has_kernel, make_blocks, normalize_blocks
from trainer.models.shape import is_bottleneck, plan_blocks

# Mean and standard deviation of the ImageNet images per channel, as fractions of 255.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class ResNet(nn.Module):
    """A ResNet classifier; it normalises images of bytes (0 to 255) and leaves images of floats unchanged."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.config = config
        plan = plan_blocks(config)
        kind = Bottleneck if is_bottleneck(config) else Basic
        self.stem = Stem(3, config.width, 7, stride=2)
        self.layers = nn.ModuleDict({str(i): kind(b.inputs, b.width, b.outputs, b.stride) for i, b in enumerate(plan)})
        self.head = nn.Linear(plan[-1].outputs, config.classes)
        self.register_buffer("mean", torch.empty(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.empty(3, 1, 1), persistent=False)
        self.init_buffers(self.head.weight.device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = pool_maxima(self.stem(self._prepare(x)))
        for block in self.layers.values():
            x = block(x)
        return self.head(x.mean((2, 3)))

    def _prepare(self, images: torch.Tensor) -> torch.Tensor:
        """Return images, or blocks of their pixels, as the stem takes them."""
        if has_kernel(images):
            return normalize_blocks(images, self.mean, self.std)
        x = images if images.is_floating_point() else (images - self.mean) / self.std
        # Convolutions keep this order of the values in memory, for which their kernels are faster.
        return x.to(memory_format=torch.channels_last) if x.is_cuda else x

    def init_buffers(self, device: torch.device | str) -> None:
        """Set the normalisation of the inputs and reset the running statistics of batch norm."""
        self.mean = torch.tensor(MEAN, device=device).view(3, 1, 1) * 255
        self.std = torch.tensor(STD, device=device).view(3, 1, 1) * 255
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()

    def initial(self, name: str, shape: tuple[int, ...]) -> tuple[float, float]:
        """Return the mean and standard deviation of a parameter's initial values.

        The last norm of a block starts at zero, so that every block starts as the identity.
        """
        if len(shape) == 4:  # noqa: PLR2004 - a convolution has outputs, inputs, height, width
            return 0.0, math.sqrt(2 / (shape[0] * shape[2] * shape[3]))
        if name == "head.weight":
            return 0.0, 0.01
        is_scale = name.endswith("norm.weight") and ".last." not in name
        return (1.0 if is_scale else 0.0), 0.0


class Convolution(nn.Module):
    """A convolution followed by batch norm, by a sum if there is something to add, and by a ReLU."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: torch.Tensor, added: torch.Tensor | None = None, *, rectifies: bool = True) -> torch.Tensor:
        return normalize_channels(self.convolve(x), self.norm, added, rectifies=rectifies)

    def convolve(self, x: torch.Tensor) -> torch.Tensor:
        """Return the convolution alone."""
        return self.conv(x)


class Stem(Convolution):
    """The first convolution, 7x7 with a stride of 2, over images whose three channels leave most of a GPU idle.

    There it is computed as a 4x4 convolution over blocks of 2x2 pixels, which is the same function of the same weight.
    """

    def convolve(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] == BLOCK_VALUES:
            return convolve_blocks(x, self.conv.weight)
        if x.is_cuda and x.shape[-2] % 2 == x.shape[-1] % 2 == 0:
            return convolve_blocks(make_blocks(x), self.conv.weight)
        return super().convolve(x)


def convolve_blocks(blocks: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return the convolution of images of even size with a 7x7 weight, a stride of 2 and a padding of 3.

    A row or column of zeros before the weight makes it 8x8, which is 4x4 blocks.
    """
    kernel = F.pad(F.pixel_unshuffle(F.pad(weight, (1, 0, 1, 0)), 2), (0, 0, 0, 0, 0, BLOCK_VALUES - 12))
    return F.conv2d(blocks.contiguous(memory_format=torch.channels_last), kernel)


class Basic(nn.Module):
    """The residual block of ResNet-18 and 34: two 3x3 convolutions."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = Convolution(inputs, width, 3, stride)
        self.last = Convolution(width, outputs, 3)
        self.short = Convolution(inputs, outputs, 1, stride) if inputs != outputs or stride > 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.short is None else self.short(x, rectifies=False)
        return self.last(self.first(x), shortcut)


class Bottleneck(nn.Module):
    """The residual block of ResNet-50 and deeper: 1x1, 3x3 and 1x1 convolutions."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = Convolution(inputs, width, 1)
        self.middle = Convolution(width, width, 3, stride)
        self.last = Convolution(width, outputs, 1)
        self.short = Convolution(inputs, outputs, 1, stride) if inputs != outputs or stride > 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        convolved, x = fork(x, self.first.conv, self.first.norm)
        shortcut = x if self.short is None else self.short(x, rectifies=False)
        return self.last(self.middle(normalize_channels(convolved, self.first.norm)), shortcut)
