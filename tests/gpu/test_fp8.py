"""On the GPU, fp8 products are those that a CPU emulates, and compiled runs use them without a graph break."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from tests.gpu.short_run import DEVICE, curve
from tests.gpu.test_compiled import train_and_count
from tests.gpu.test_strategies import HALF_TOLERANCE, parallel, train_plain
from trainer.models.fp8 import multiply_fp8

SCALINGS = ["tensor", "row"]


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("rows", [16, 100, 4096])
def test_products_equal_those_of_the_same_values_in_fp32(scaling: str, rows: int) -> None:
    generator = torch.Generator().manual_seed(1)
    x, weight, upstream = (torch.randn(*shape, generator=generator) for shape in ((rows, 256), (512, 256), (rows, 512)))
    results = []
    for device in ("cpu", DEVICE):
        inputs = [tensor.to(device).requires_grad_() for tensor in (x, weight)]
        y = multiply_fp8(inputs[0], inputs[1], None, has_row_scales=scaling == "row")
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
