"""The stem of a ResNet over blocks of pixels, and the order of its activations in memory."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.gpu_cases import leave_out
from tests.gpu.short_run import DEVICE
from trainer.config.models import ResNetConfig
from trainer.models.pixel_blocks import make_blocks
from trainer.models.resnet import ResNet, convolve_blocks


def test_a_stem_over_blocks_is_the_same_convolution() -> None:
    images = torch.randn(3, 3, 34, 40, device=DEVICE, dtype=torch.float64)
    weight = torch.randn(8, 3, 7, 7, device=DEVICE, dtype=torch.float64, requires_grad=True)
    outputs = [convolve_blocks(make_blocks(images), weight), F.conv2d(images, weight, stride=2, padding=3)]
    assert torch.allclose(*outputs)
    gradients = [torch.autograd.grad(output.square().sum(), weight)[0] for output in outputs]
    assert torch.allclose(*gradients)


def test_activations_have_their_channels_last() -> None:
    model = ResNet(ResNetConfig(depth=50, classes=10, image_size=64, width=16)).to(DEVICE)
    model.init_buffers(DEVICE)
    formats = []
    for block in model.layers.values():
        block.register_forward_hook(
            lambda _module, _inputs, output: formats.append(output.is_contiguous(memory_format=torch.channels_last))
        )
    images = torch.randint(256, (2, 3, 64, 64), dtype=torch.uint8, device=DEVICE)
    with torch.autocast("cuda", torch.bfloat16):
        model(images).sum().backward()
    assert formats
    assert all(formats)


def test_a_step_with_forks_and_blocks_of_bytes_has_the_gradients_of_one_without() -> None:
    model = ResNet(ResNetConfig(depth=50, classes=10, image_size=64, width=16)).to(DEVICE)
    model.init_buffers(DEVICE)
    images = torch.randint(256, (8, 3, 64, 64), dtype=torch.uint8, device=DEVICE)
    for name, weight in model.named_parameters():
        # The last norm of a block starts at zero, and nothing would go through it.
        torch.nn.init.normal_(weight, float(name.endswith("norm.weight")), 0.1 if weight.dim() == 1 else 0.05)
    gradients = []
    for without in ("", "forks+block-kernel"):
        model.zero_grad()
        with leave_out(without), torch.autocast("cuda", torch.bfloat16):
            loss = model(images).float().square().mean()
        loss.backward()
        gradients.append([weight.grad.clone() for weight in model.parameters() if weight.grad is not None])
    together, apart = (torch.cat([gradient.flatten() for gradient in each]) for each in gradients)
    assert len(gradients[0]) == len(list(model.parameters()))
    assert float((together - apart).norm() / apart.norm()) < 0.05
