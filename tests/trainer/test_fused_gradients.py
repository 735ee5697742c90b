"""Gradients of biases and norms that kernels sum on a GPU: the same as autograd's, in graphs and without them.

The kernels run in Triton's interpreter; tests/gpu compiles them and runs them at the sizes of real models.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F

from trainer.config.load import load
from trainer.models import bias_gradients, bias_gradients_kernel, gpt2, llama, projections, residual_norm
from trainer.models import residual_norm_kernel as norm_kernel
from trainer.models.init import fill
from trainer.models.registry import build_model

ROWS, COLUMNS = (2, 5), 40
# Several parts with several rows each, and the last tile is not full.
SIZES: dict[str, Any] = {"_GELU_TILE": (4, 16), "_JOIN_TILE": (4, 16), "_PROGRAMS": 6, "_NORM_PROGRAMS": 3}


def test_kernels_equal_torch() -> None:
    x, slope, other = (draw(*ROWS, COLUMNS, seed=seed) for seed in (1, 2, 3))
    weight, parts = draw(COLUMNS, seed=4), [draw(*ROWS, width, seed=width) for width in (24, 8, 8)]
    mean, inverse = x.mean(-1, keepdim=True), torch.rsqrt(x.var(-1, correction=0, keepdim=True))
    pairs: list[tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]] = [
        (bias_gradients_kernel.differentiate_gelu, bias_gradients.differentiate_gelu, (slope, x)),
        (bias_gradients_kernel.join_columns, bias_gradients.join_columns, (parts,)),
        (
            bias_gradients_kernel.differentiate_norm,
            bias_gradients.differentiate_norm,
            (slope, other, x, mean, inverse, weight),
        ),
        (norm_kernel.differentiate_rows, residual_norm.differentiate_rms_norm, (slope, other, x, inverse, weight)),
    ]
    with patch.multiple(bias_gradients_kernel, **SIZES), patch.object(norm_kernel, "_PROGRAMS", 3):
        for kernel, plain, operands in pairs:
            for actual, expected in zip(kernel(*operands), plain(*operands), strict=True):
                assert torch.allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("preset", ["tiny-gpt2", "tiny-llama"])
def test_a_model_has_the_gradients_of_autograd(preset: str) -> None:
    """In fp32, where little is rounded; the conditions of a GPU are pretended."""
    model, tokens = make_model(preset)

    def compute_loss() -> torch.Tensor:
        logits = model(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    expected = differentiate(model, compute_loss)
    with ExitStack() as stack:
        for module, name in ((gpt2, "can_sum"), (llama, "can_fuse"), (projections, "can_join")):
            stack.enter_context(patch.object(module, name, lambda *_: True))
        has_biases = preset == "tiny-gpt2"
        stack.enter_context(patch.object(projections, "can_sum", lambda *_: has_biases))
        stack.enter_context(patch.object(gpt2, "STREAM_TYPE", torch.float32))
        compiled = torch.compile(compute_loss, backend="aot_eager", fullgraph=True)
        for actual in (differentiate(model, compute_loss), differentiate(model, compiled)):
            assert actual.keys() == expected.keys()
            for name, gradient in actual.items():
                # Softmax does not depend on the bias of keys: its gradients are rounding.
                limit = 1e-3 * float(expected[name].norm()) + 1e-5
                assert float((gradient - expected[name]).norm()) < limit, name


def test_nothing_is_fused_outside_of_a_graph_for_a_gpu() -> None:
    model, _ = make_model("tiny-gpt2")
    block: Any = model.layers["0"]
    assert not bias_gradients.can_sum(torch.zeros(1, dtype=torch.bfloat16), (block.ffn.up,))
    norm = torch.nn.RMSNorm(8)
    assert not residual_norm.can_fuse(torch.zeros(1, 8, dtype=torch.bfloat16), norm)


def make_model(preset: str) -> tuple[Any, torch.Tensor]:
    config = load(preset, ["model.layers=1"])
    model: Any = build_model(config.model)
    model.init_buffers("cpu")
    fill([model], seed=1, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.1)
    settings: Any = config.model
    return model, torch.randint(settings.vocab_size, (2, 9), generator=generator)


def differentiate(model: Any, compute_loss: Callable[[], torch.Tensor]) -> dict[str, torch.Tensor]:
    model.zero_grad()
    compute_loss().backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
