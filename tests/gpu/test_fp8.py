"""On the GPU, fp8 products are those that a CPU emulates, and compiled runs use them without a graph break."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.utils import counters

from benchmarks.gpu_cases import leave_out, make_batch, make_step
from tests.gpu.short_run import DEVICE, curve
from tests.gpu.test_compiled import train_and_count
from tests.gpu.test_strategies import HALF_TOLERANCE, parallel, train_plain
from trainer.config.load import load
from trainer.models import fp8_swiglu
from trainer.models.fp8 import DelayedScales, multiply_fp8
from trainer.models.fp8_cast import cast_fp8, cast_plainly
from trainer.models.fp8_formats import E4M3, E5M2
from trainer.models.fp8_swiglu import activate_fp8, differentiate_activation_fp8

SCALINGS = ["tensor", "row", "delayed"]


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("rows", [16, 100, 4096])
def test_products_equal_those_of_the_same_values_in_fp32(scaling: str, rows: int) -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight, upstream = (torch.randn(*shape, generator=generator) for shape in ((rows, 256), (512, 256), (rows, 512)))
    results = []
    for device in ("cpu", DEVICE):
        inputs = [tensor.to(device).requires_grad_() for tensor in (x, weight)]
        delayed = DelayedScales(*(torch.zeros(count, device=device) for count in ((3,), (2,), ())))
        y = multiply_fp8(
            inputs[0],
            inputs[1],
            None,
            has_row_scales=scaling == "row",
            delayed=delayed if scaling == "delayed" else None,
        )
        results.append((y, *torch.autograd.grad(y, inputs, upstream.to(device, y.dtype))))
    for emulated, actual in zip(*results, strict=True):
        difference = (actual.cpu().float() - emulated.float()).norm() / emulated.float().norm()
        assert difference < 0.01


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize(
    ("mode", "strategy"), [("none", "single"), ("blocks", "single"), ("whole", "single"), ("blocks", "fsdp")]
)
def test_a_run_in_fp8_follows_full_precision(scaling: str, mode: str, strategy: str) -> None:
    counters.clear()
    settings = (*parallel(strategy), f"compile.mode={mode}", "precision=bf16", f"fp8.scaling={scaling}")
    result = curve(settings, steps=5)
    assert result.losses == pytest.approx(train_plain("tiny-llama").losses[:5], abs=2 * HALF_TOLERANCE)
    assert result.skipped == [0.0] * 5
    assert not counters["graph_break"]


@pytest.mark.parametrize("scaling", SCALINGS)
def test_nothing_is_compiled_after_the_second_step(scaling: str) -> None:
    counters.clear()
    _, graphs = train_and_count("tiny-llama", "blocks", "precision=bf16", f"fp8.scaling={scaling}")
    assert 0 < graphs[0] <= graphs[1]
    assert graphs[1:] == [graphs[1]] * (len(graphs) - 1)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("scale", [0.0, 3e-3, 1e-5])
@pytest.mark.parametrize("shape", [(32768, 2048), (4096, 8192), (2048, 8192), (80, 48)])
def test_a_delayed_cast_has_the_bits_of_the_plain_one(shape: tuple[int, int], scale: float, dtype: torch.dtype) -> None:
    """With the scale of 1e-5, most values are clamped."""
    generator = torch.Generator(DEVICE).manual_seed(1)
    x = torch.randn(*shape, device=DEVICE, generator=generator).bfloat16()
    scales = torch.full((), scale, device=DEVICE)
    actual, expected = cast_fp8(x, scales, dtype), cast_plainly(x, scales, dtype)
    for ours, plain in zip(actual[:2], expected[:2], strict=True):
        assert torch.equal(ours.view(torch.uint8), plain.view(torch.uint8))
    assert torch.equal(actual[2], expected[2])


@pytest.mark.parametrize("scale", [0.0, 3e-3])
@pytest.mark.parametrize("shape", [(4096, 14336), (80, 48)])
def test_a_cast_of_a_stored_weight_has_the_bits_of_a_cast_of_its_bf16_copy(
    shape: tuple[int, int], scale: float
) -> None:
    generator = torch.Generator(DEVICE).manual_seed(1)
    x = torch.randn(*shape, device=DEVICE, generator=generator)
    scales = torch.full((), scale, device=DEVICE)
    actual, expected = cast_fp8(x, scales, E4M3), cast_fp8(x.bfloat16(), scales, E4M3)
    for ours, copied in zip(actual, expected, strict=True):
        assert torch.equal(ours.view(torch.uint8), copied.view(torch.uint8))


def test_stored_casts_change_no_bit_of_a_run_that_rounds_gradients_anyway() -> None:
    """The shapes are those of Llama 8B: for others, cuBLAS may add up in another order if it writes fp32."""
    settings = ["model.layers=2", "model.vocab_size=4096", "data.seq_len=4096", "parallel.recompute=none"]
    settings += ["parallel.strategy=single", "batch.size=2", "batch.micro=2", "schedule.warmup=1000"]
    config = load("llama-8b", [*settings, "fp8.scaling=delayed", "optimizer.gradients=bf16"])
    torch.use_deterministic_algorithms(True)
    curves = []
    for without in ("", "stored-casts"):
        torch.compiler.reset()
        with leave_out(without):
            step, tokens = make_step(config), make_batch(config, 2)
            results = [step.run(tokens, 2) for _ in range(8)]
        curves.append([(float(result.loss), float(result.grad_norm)) for result in results])
    assert curves[0] == curves[1]
    assert curves[0][-1][0] < curves[0][0][0]


@pytest.mark.parametrize("scale", [0.0, 3e-3])
@pytest.mark.parametrize("shape", [(32768, 8192), (4096, 14336), (80, 48)])
def test_swiglu_is_written_in_fp8_with_its_gradients(shape: tuple[int, int], scale: float) -> None:
    generator = torch.Generator(DEVICE).manual_seed(1)
    gradient, gate, up = (torch.randn(*shape, device=DEVICE, generator=generator).bfloat16() for _ in range(3))
    scales = torch.full((), scale, device=DEVICE), torch.full((), scale / 2, device=DEVICE)
    output = F.silu(gate.float()) * up.float()
    casts = [(activate_fp8(gate, up, scales[0]), cast_plainly(output, scales[0], E4M3))]
    del output
    results = differentiate_activation_fp8(gradient, gate, up, *scales)
    for place, exact in enumerate(fp8_swiglu.differentiate(gradient, gate, up)):
        casts.append((tuple(each[place] for each in results), cast_plainly(exact, scales[place], E5M2)))
    for actual, expected in casts:
        values = actual[0].view(torch.uint8)
        assert torch.equal(actual[1].view(torch.uint8), values.t())
        assert torch.allclose(actual[2], expected[2], rtol=2**-7, atol=0)
        # Exponentials may differ in the last bit, and then an fp8 value is the neighbour.
        assert float((values != expected[0].view(torch.uint8)).float().mean()) < 0.01
        assert torch.allclose(actual[0].bfloat16(), expected[0].bfloat16(), rtol=0.25, atol=2.0**-9)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_a_delayed_cast_hides_no_nan_and_no_infinity(scale: float, bad: float) -> None:
    x = torch.ones(64, 64, device=DEVICE)
    x[3, 4] = -bad
    scales = torch.full((3,), scale, device=DEVICE)
    delayed = DelayedScales(scales, torch.zeros(2, device=DEVICE), torch.zeros((), device=DEVICE))
    y = multiply_fp8(x, torch.ones(64, 64, device=DEVICE), None, has_row_scales=False, delayed=delayed)
    assert not y.isfinite().any()
    assert not delayed.maxima[0].isfinite()
