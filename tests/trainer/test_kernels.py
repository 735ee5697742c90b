"""The GPU's kernels of loss and optimizer in Triton's interpreter: the same results as torch's operations.

tests/gpu compiles them and runs them at the sizes of real models.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import triton.language as tl
from triton.runtime import interpreter

from trainer.config.schema import OptimizerConfig
from trainer.models import fp8_cast_kernel, fp8_swiglu_kernel, softmax_kernel
from trainer.models.fp8_cast import cast_fp8
from trainer.models.fp8_formats import E4M3, E5M2
from trainer.models.fp8_swiglu import activate_fp8, differentiate_activation_fp8
from trainer.models.functional import IGNORED_TARGET
from trainer.optimizers import adamw_kernel
from trainer.optimizers.chunks import Update
from trainer.optimizers.moments import DTYPES, Moment
from trainer.optimizers.slot import Slot

CONFIG = OptimizerConfig(name="adamw")
SMALL_BLOCKS: dict[str, Any] = {"_SEGMENTS": 2, "_SEGMENT_COLUMNS": 16, "_PROGRAMS": 2}
SMALL_TILES: dict[str, Any] = {"_TILE_ROWS": 16, "_TILE_COLUMNS": 32}


@pytest.mark.parametrize("columns", [1, 5, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_become_their_gradient(columns: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = (3 * torch.randn(5, columns, generator=generator)).to(dtype)
    targets = torch.randint(columns, (5,), generator=generator)
    targets[2] = IGNORED_TARGET
    exact = logits.double().requires_grad_()
    expected = F.cross_entropy(exact, targets, reduction="none", ignore_index=IGNORED_TARGET)
    (slopes,) = torch.autograd.grad(expected.sum(), exact)
    losses = torch.empty(5)
    # Fewer programs than rows, blocks that are smaller than a row, and the last one not full.
    with patch.multiple(softmax_kernel, **SMALL_BLOCKS):
        softmax_kernel.differentiate_rows(logits, targets, losses, 2.0)
    assert torch.allclose(losses.double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.allclose(logits.double() / 2, slopes, rtol=4 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("divides", [True, False])
@pytest.mark.parametrize("skips", [True, False])
def test_adamw_updates_or_skips(divides: bool, skips: bool) -> None:
    slot = make_slot(CONFIG)
    theirs = [tensor.clone() for tensor in list_tensors(slot)]
    divide, skip = torch.tensor(4.0) if divides else None, torch.tensor(1.0) if skips else None
    update = Update(1e-3, divide, skip, torch.tensor(3.0), 0)
    update_slot(slot, update)
    torch._fused_adamw_(
        *([tensor] for tensor in theirs), [], [update.count], lr=1e-3, beta1=CONFIG.beta1, beta2=CONFIG.beta2,
        eps=CONFIG.eps, weight_decay=0.1, amsgrad=False, maximize=False, grad_scale=divide, found_inf=skip,
    )  # fmt: skip
    for ours, expected in zip(list_tensors(slot), theirs, strict=True):
        assert torch.allclose(ours, expected, rtol=1e-5, atol=1e-6) or ours is slot.gradient


BF16_STATE = [
    OptimizerConfig(weights="bf16", gradients="bf16", moments="bf16"),
    OptimizerConfig(weights="bf16", gradients="bf16"),
    OptimizerConfig(weights="bf16", gradients="fp32", moments="bf16"),
    OptimizerConfig(moments="bf16"),
]


@pytest.mark.parametrize("config", BF16_STATE)
def test_adamw_rounds_bf16_values_up_or_down_and_preserves_their_mean(config: OptimizerConfig) -> None:
    slot = make_slot(config)
    exact = make_slot(CONFIG, like=slot)
    for each in (slot, exact):
        update_slot(each, Update(1e-2, None, None, torch.tensor(3.0), 7))
    up_shares = []
    for ours, expected in zip(list_tensors(slot), list_tensors(exact), strict=True):
        if ours.dtype == torch.float32 or ours is slot.gradient:
            assert torch.equal(ours.float(), expected)
            continue
        bits = expected.view(torch.int32)
        dropped = bits & 0xFFFF
        steps = (ours.float().view(torch.int32) - (bits - dropped)) >> 16
        assert set(steps.tolist()) <= {0, 1}
        # The standard deviation of the mean of 3,000 roundings is at most 0.5 / sqrt(3,000) = 0.009.
        assert float(steps.float().mean()) == pytest.approx(float(dropped.float().mean()) / 2**16, abs=0.04)
        up_shares.append(steps)
    # Weights and moments are not rounded by the same noise.
    assert len({tuple(steps.tolist()) for steps in up_shares}) == len(up_shares) > 0


def test_adamw_rounds_otherwise_in_another_step_and_alike_on_another_rank() -> None:
    outcomes = []
    for seed in (7, 7, 8):
        slot = make_slot(BF16_STATE[0])
        update_slot(slot, Update(1e-2, None, None, torch.tensor(3.0), seed))
        outcomes.append(slot.parameter.detach())
    assert torch.equal(outcomes[0], outcomes[1])
    assert not torch.equal(outcomes[0], outcomes[2])


def test_adamw_sets_bf16_weights_to_the_nearest_of_their_fp32_copies() -> None:
    config = OptimizerConfig(weights="bf16", gradients="bf16", master=True)
    slot = make_slot(config)
    exact = make_slot(CONFIG, like=slot)
    for each in (slot, exact):
        update_slot(each, Update(1e-2, None, None, torch.tensor(3.0), 7))
    assert slot.master is not None
    assert torch.equal(slot.master, exact.parameter)
    assert torch.equal(slot.parameter, exact.parameter.bfloat16())


def test_adamw_preserves_nan_in_bf16() -> None:
    slot = make_slot(BF16_STATE[0])
    slot.gradient[5] = torch.nan
    # All bits of a NaN can be set, and the sum with any noise then overflows.
    slot.moments["first"].values.view(torch.int16)[6] = 0x7FFF
    update_slot(slot, Update(1e-2, None, None, torch.tensor(3.0), 7))
    assert slot.parameter.isnan().nonzero().flatten().tolist() == [5, 6]
    assert slot.moments["first"].values.isnan().nonzero().flatten().tolist() == [5, 6]


@pytest.fixture
def exact_casts() -> Iterator[None]:
    """Let the interpreter round like a GPU: it truncates to bf16, and its rounding to fp8 loses the mantissa's carry.

    A few programs search small matrices; one after the other, those of a GPU take long.
    """
    formats = {tl.float8e4nv: (E4M3, torch.uint8), tl.float8e5: (E5M2, torch.uint8)}
    formats[tl.bfloat16] = (torch.bfloat16, torch.uint16)
    convert = interpreter._convert_float

    def round_to_even(values: Any, source: Any, target: Any, mode: Any) -> Any:
        if target not in formats or source != tl.float32:
            return convert(values, source, target, mode)
        dtype, bits = formats[target]
        return torch.from_numpy(np.ascontiguousarray(values)).to(dtype).view(bits).numpy()

    with (
        patch.object(interpreter, "_convert_float", round_to_even),
        patch.object(fp8_cast_kernel, "SEARCH_PROGRAMS", 3),
        patch.object(fp8_cast_kernel, "SEARCH_VALUES", 64),
    ):
        yield


@pytest.mark.usefixtures("exact_casts")
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("scale", [0.0, 3e-3, 1e-6])
@pytest.mark.parametrize("shape", [(1, 16), (16, 16), (40, 33)])
def test_a_cast_to_fp8_has_the_same_bits(shape: tuple[int, int], scale: float, dtype: torch.dtype) -> None:
    """With the smallest scale, values are clamped."""
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    x[0, 3] = -5.0
    expected = cast_fp8(x, torch.tensor(scale), dtype)
    with patch.object(fp8_cast_kernel, "_TILE_ROWS", 16), patch.object(fp8_cast_kernel, "_TILE_COLUMNS", 32):
        actual = fp8_cast_kernel.cast_tiles(x, torch.tensor(scale), dtype)
    for ours, theirs in zip(actual[:2], expected[:2], strict=True):
        assert torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
    assert actual[2].tolist() == expected[2].tolist()
    assert actual[2].tolist() == pytest.approx([scale or 5 / torch.finfo(dtype).max, 5.0])


@pytest.mark.usefixtures("exact_casts")
@pytest.mark.parametrize("scale", [0.0, 3e-3])
def test_a_cast_of_an_fp32_matrix_has_the_bits_of_a_cast_of_its_bf16_copy(scale: float) -> None:
    x = torch.randn(40, 33, generator=torch.Generator().manual_seed(1))
    actual, expected = (fp8_cast_kernel.cast_tiles(value, torch.tensor(scale), E4M3) for value in (x, x.bfloat16()))
    for ours, copied in zip(actual, expected, strict=True):
        assert torch.equal(ours.view(torch.uint8), copied.view(torch.uint8))


@pytest.mark.usefixtures("exact_casts")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_a_cast_to_fp8_reports_a_nan_or_an_infinity(scale: float, bad: float) -> None:
    x = torch.ones(16, 16).bfloat16()
    x[3, 4] = -bad
    largest = float(fp8_cast_kernel.cast_tiles(x, torch.tensor(scale), E4M3)[2][1])
    assert largest == pytest.approx(bad, nan_ok=True)


@pytest.mark.usefixtures("exact_casts")
@pytest.mark.parametrize("scale", [0.0, 3e-3, 1e-6])
@pytest.mark.parametrize("shape", [(1, 16), (40, 33)])
def test_swiglu_is_written_in_fp8(shape: tuple[int, int], scale: float) -> None:
    """With the smallest scale, values are clamped."""
    gate, up = make_matrices(shape, 2)
    with patch.multiple(fp8_swiglu_kernel, _TILE_ROWS=16, _TILE_COLUMNS=32):
        actual = fp8_swiglu_kernel.activate_tiles(gate, up, torch.tensor(scale))
    check_cast(actual, activate_fp8(gate, up, torch.tensor(scale)))


@pytest.mark.usefixtures("exact_casts")
@pytest.mark.parametrize("scales", [(0.0, 0.0), (0.0, 3e-4), (1e-3, 0.0), (3e-3, 1e-7)])
@pytest.mark.parametrize("shape", [(1, 16), (40, 33)])
def test_gradients_of_swiglu_are_written_in_fp8(shape: tuple[int, int], scales: tuple[float, float]) -> None:
    operands = (*make_matrices(shape, 3), *(torch.tensor(scale) for scale in scales))
    with patch.multiple(fp8_swiglu_kernel, _TILE_ROWS=16, _TILE_COLUMNS=32):
        actual = fp8_swiglu_kernel.differentiate_tiles(*operands)
    expected = differentiate_activation_fp8(*operands)
    for place in range(2):
        check_cast([each[place] for each in actual], [each[place] for each in expected])


def test_gradients_of_swiglu_are_those_of_autograd() -> None:
    gradient, gate, up = make_matrices((40, 33), 3)
    exact = [each.double().requires_grad_() for each in (gate, up)]
    expected = torch.autograd.grad(F.silu(exact[0]) * exact[1], exact, gradient.double())
    values, _, figures = differentiate_activation_fp8(gradient, gate, up, torch.tensor(0.0), torch.tensor(0.0))
    for actual, scale, reference in zip(values, figures[:, 0], expected, strict=True):
        assert torch.allclose(actual.double() * scale, reference, rtol=0.13, atol=1e-5 * float(reference.abs().max()))


@pytest.mark.usefixtures("exact_casts")
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_swiglu_in_fp8_reports_a_nan_or_an_infinity(scale: float, bad: float) -> None:
    gradient, gate, up = (torch.ones(16, 16).bfloat16() for _ in range(3))
    up[3, 4] = -bad
    scales = (torch.tensor(scale),) * 2
    largest = [fp8_swiglu_kernel.activate_tiles(gate, up, scales[0])[2][1]]
    largest.append(fp8_swiglu_kernel.differentiate_tiles(gradient, gate, up, *scales)[2][0, 1])
    assert [float(each) for each in largest] == [pytest.approx(bad, nan_ok=True)] * 2


@pytest.mark.usefixtures("exact_casts")
@pytest.mark.parametrize("columns", [16, 70])
def test_slopes_in_fp8_are_those_of_a_cast_of_the_bf16_ones(columns: int) -> None:
    (logits,) = make_matrices((20, columns), 1)
    targets = torch.randint(columns, (20,), generator=torch.Generator().manual_seed(1))
    targets[2] = IGNORED_TARGET
    losses, expected_losses = torch.empty(20), torch.empty(20)
    scale = torch.tensor(2.0**-15)
    with patch.multiple(softmax_kernel, **SMALL_BLOCKS, **SMALL_TILES):
        actual = softmax_kernel.differentiate_rows_fp8(logits, targets, losses, scale)
        softmax_kernel.differentiate_rows(logits, targets, expected_losses, 1.0)
    assert torch.equal(losses, expected_losses)
    for ours, cast in zip(actual, cast_fp8(logits, scale, E5M2), strict=True):
        assert torch.equal(ours.view(torch.uint8), cast.view(torch.uint8))


def make_matrices(shape: tuple[int, int], count: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [(3 * torch.randn(*shape, generator=generator)).bfloat16() for _ in range(count)]


def check_cast(actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    """Compare casts of values that may differ in the last bit of bf16, because exponentials do."""
    values, transposed, figures = actual
    assert torch.equal(transposed.view(torch.uint8), values.view(torch.uint8).t())
    assert torch.allclose(figures, expected[2], rtol=2**-7, atol=0)
    differs = values.view(torch.uint8) != expected[0].view(torch.uint8)
    assert float(differs.float().mean()) < 0.02
    # Where the bits differ, it is by one step of the format, the larger of which is a quarter.
    assert torch.allclose(values.float(), expected[0].float(), rtol=0.25, atol=2.0**-9)


def make_slot(config: OptimizerConfig, like: Slot | None = None) -> Slot:
    """Return a parameter of 3,000 values with gradient and moments, random or converted from another."""
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(3000, generator=generator) for _ in range(4)] if like is None else list_tensors(like)
    dtypes = [config.weights, config.gradients, config.moments, config.moments]
    weight, gradient, first, second = (
        each.detach().to(DTYPES[name]).clone() for each, name in zip(values, dtypes, strict=True)
    )
    parameter = torch.nn.Parameter(weight)
    parameter.grad_dtype = gradient.dtype
    parameter.grad = gradient
    moments = {"first": Moment(config.moments, True, first), "second": Moment(config.moments, False, second.abs_())}
    return Slot("weight", parameter, moments, weight.float() if config.master else None)


def list_tensors(slot: Slot) -> list[torch.Tensor]:
    """Return weights, gradients and moments."""
    return [slot.parameter.detach(), slot.gradient, *(moment.values for moment in slot.moments.values())]


def update_slot(slot: Slot, update: Update) -> None:
    corrections = torch.stack((1 - CONFIG.beta1**update.count, (1 - CONFIG.beta2**update.count).sqrt()))
    adamw_kernel.update_slot(slot, corrections=corrections, decay=0.1, update=update, config=CONFIG)
