"""Attention from a part of a sequence to all tokens before it, on the GPU's fast kernels."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from trainer.models.attention import attend

# Two results of bf16 kernels that round in another order.
TOLERANCE = 2e-2
HEADS, KV_HEADS, TOKENS, WIDTH = 8, 2, 512, 64


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_last_queries_attend_like_the_same_queries_among_all(window: int, *, compiled: bool) -> None:
    function = torch.compile(attend) if compiled else attend
    q, k, v = make_inputs()
    whole = attend(q, k, v, window=window)[:, :, TOKENS // 2 :]
    part = function(q[:, :, TOKENS // 2 :], k, v, window=window)
    assert torch.allclose(part, whole, atol=TOLERANCE)
    scale = torch.randn_like(whole)
    expected, gradients = (torch.autograd.grad((x * scale).sum(), (q, k, v)) for x in (whole, part))
    for name, left, right in zip("qkv", expected, gradients, strict=True):
        assert torch.allclose(left, right, atol=5 * TOLERANCE), name


def test_the_last_queries_need_no_mask_in_memory() -> None:
    q, k, v = make_inputs()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        attend(q[:, :, TOKENS // 2 :], k, v)
    names = {event.key for event in recorded.key_averages()}
    assert "aten::_scaled_dot_product_flash_attention" in names, names
    assert "aten::tril" not in names, names


def make_inputs() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator("cuda").manual_seed(1)
    options = {"generator": generator, "device": "cuda", "dtype": torch.bfloat16}
    shapes = [(2, heads, TOKENS, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    return tuple(torch.randn(shape, **options).requires_grad_() for shape in shapes)
