"""Gradients of biases and norms that kernels sum, at the sizes of real models; compiled models train with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from benchmarks.gpu_cases import leave_out
from tests.gpu.short_run import DEVICE, curve
from tests.gpu.test_strategies import HALF_TOLERANCE, parallel
from trainer.models import bias_gradients, residual_norm

ROWS = (3, 1000)


def make_operands(columns: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator(DEVICE).manual_seed(1)
    x, slope, other = (torch.randn(*ROWS, columns, device=DEVICE, generator=generator).bfloat16() for _ in range(3))
    values = x.float()
    mean, inverse = values.mean(-1, keepdim=True), torch.rsqrt(values.var(-1, correction=0, keepdim=True) + 1e-5)
    return x, slope, other, mean, inverse, torch.randn(columns, device=DEVICE, generator=generator)


@pytest.mark.parametrize("columns", [768, 1000, 3072])
def test_kernels_equal_torch_and_repeat_to_the_bit(columns: int) -> None:
    x, slope, other, mean, inverse, weight = make_operands(columns)
    cases: list[tuple[Callable[..., Any], Any]] = [
        (bias_gradients.differentiate_gelu, (slope, x)),
        (bias_gradients.join_columns, ([slope, other[..., :64].contiguous(), x],)),
        (bias_gradients.differentiate_norm, (slope, other, x, mean, inverse, weight)),
        (residual_norm.differentiate_rms_norm, (slope, other, x, inverse, weight)),
    ]
    for function, operands in cases:
        results = [function(*operands) for _ in range(2)]
        exact = function(*(move(operand) for operand in operands))
        for first, second, expected in zip(*results, exact, strict=True):
            assert torch.equal(first, second)
            assert first.dtype == expected.dtype
            error = (first.double().cpu() - expected.double()).norm() / expected.double().norm()
            assert float(error) < 1e-3, function


RUNS = [("tiny-gpt2", "single", "whole"), ("tiny-llama", "single", "whole"), ("tiny-llama", "fsdp", "blocks")]


@pytest.mark.parametrize(("preset", "strategy", "mode"), RUNS)
def test_a_compiled_run_uses_them_and_follows_autograd(preset: str, strategy: str, mode: str) -> None:
    settings = (*parallel(strategy), f"compile.mode={mode}", "precision=bf16")
    counters.clear()
    fused = curve(settings, preset, steps=5)
    assert not counters["graph_break"]
    assert any("differentiate" in name for name in list_kernels(settings, preset))
    torch.compiler.reset()
    with leave_out("bias-sums+norm-gradients"):
        plain = curve(settings, preset, steps=5)
    assert fused.losses == pytest.approx(plain.losses, abs=HALF_TOLERANCE)
    assert fused.norms == pytest.approx(plain.norms, rel=0.02)


def list_kernels(settings: tuple[str, ...], preset: str) -> list[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as recorded:
        curve(settings, preset, steps=2)
    return [event.key for event in recorded.key_averages()]


def move(operand: Any) -> Any:
    return [each.cpu() for each in operand] if isinstance(operand, list) else operand.cpu()
