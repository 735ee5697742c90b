"""On the GPU, a head in fp8 computes what a CPU emulates, and runs with it follow full precision."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from tests.gpu.short_run import DEVICE, curve
from tests.gpu.test_strategies import HALF_TOLERANCE, parallel, train_plain
from trainer.models.fp8_cast import cast_fp8
from trainer.models.fp8_formats import E5M2
from trainer.models.fp8_head import differentiate_head_fp8, differentiate_rows_fp8
from trainer.models.functional import IGNORED_TARGET
from trainer.models.fused_loss import differentiate_head, differentiate_rows


@pytest.mark.parametrize("sums_in_fp32", [True, False])
@pytest.mark.parametrize("chunk", [4096, 1000])
@pytest.mark.parametrize("rows", [4096, 1001])
def test_losses_and_gradients_equal_those_of_a_cpu(rows: int, chunk: int, sums_in_fp32: bool) -> None:
    operands = make_operands(rows, 256, 2048)
    expected = differentiate_head_fp8(*operands, chunk, True, True, sums_in_fp32)
    actual = differentiate_head_fp8(*(tensor.to(DEVICE) for tensor in operands), chunk, True, True, sums_in_fp32)
    for ours, emulated in zip(actual, expected, strict=True):
        assert ours.dtype == emulated.dtype
        assert measure_error(ours.cpu(), emulated) < 0.01


def test_at_the_size_of_a_real_vocabulary_it_is_close_to_bf16() -> None:
    states, columns, targets = (tensor.to(DEVICE) for tensor in make_operands(4096, 1024, 128_256))
    exact = differentiate_head(states, columns, targets, 4096, 1.0, 1.0, True, True, True)
    actual = differentiate_head_fp8(states, columns, targets, 4096, True, True, True)
    assert measure_error(actual[0], exact[0]) < 0.01
    for ours, reference in zip(actual[1:], exact[1:], strict=True):
        assert measure_error(ours, reference) < 0.08


def test_slopes_have_the_bits_of_a_cast_of_the_bf16_ones() -> None:
    generator = torch.Generator(DEVICE).manual_seed(1)
    logits = (3 * torch.randn(4096, 128_256, device=DEVICE, generator=generator)).bfloat16()
    targets = torch.randint(128_256, (4096,), device=DEVICE, generator=generator)
    targets[7] = IGNORED_TARGET
    losses, expected_losses = (torch.empty(4096, device=DEVICE) for _ in range(2))
    scale = torch.full((), 2.0**-15, device=DEVICE)
    actual = differentiate_rows_fp8(logits, targets, losses, scale)
    differentiate_rows(logits, targets, expected_losses, 1.0)
    assert torch.equal(losses, expected_losses)
    for ours, cast in zip(actual, cast_fp8(logits, scale, E5M2), strict=True):
        assert torch.equal(ours.view(torch.uint8), cast.view(torch.uint8))


@pytest.mark.parametrize("scaling", ["tensor", "delayed"])
@pytest.mark.parametrize(("mode", "strategy"), [("none", "single"), ("whole", "single"), ("blocks", "fsdp")])
def test_a_run_follows_full_precision(scaling: str, mode: str, strategy: str) -> None:
    counters.clear()
    settings = (*parallel(strategy), f"compile.mode={mode}", "precision=bf16", f"fp8.scaling={scaling}")
    result = curve((*settings, "fp8.head=true"), steps=5)
    assert result.losses == pytest.approx(train_plain("tiny-llama").losses[:5], abs=2 * HALF_TOLERANCE)
    assert result.skipped == [0.0] * 5
    assert not counters["graph_break"]


def make_operands(rows: int, dim: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    states, columns = (torch.randn(count, dim, generator=generator) for count in (rows, vocabulary))
    targets = torch.randint(vocabulary, (rows,), generator=generator)
    targets[7] = IGNORED_TARGET
    return states.bfloat16(), (columns / dim**0.5).bfloat16(), targets


def measure_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the relative error, by the norm of the difference."""
    return float((actual.float() - expected.float()).norm() / expected.float().norm())
