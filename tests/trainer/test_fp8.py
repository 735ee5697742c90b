"""Fp8 products: how exact they are, which layers compute them, and runs that use them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.trainer.curves import config_of, curve, make_step
from tests.trainer.ranks import on_ranks
from trainer.config.errors import ConfigError
from trainer.config.load import load
from trainer.models.fp8 import Fp8Linear, multiply_fp8, use_fp8

TINY = ["precision=bf16", "model.seq_len=16", "model.layers=2", "batch.size=8", "batch.micro=4"]
SINGLE, ROW = "parallel.strategy=single", "fp8.scaling=row"
# A value of e4m3 is at most 1/16 off, one of e5m2 at most 1/8. The errors of a sum of many products partly cancel out.
FORWARD_ERROR, GRADIENT_ERROR = 0.05, 0.08


@pytest.mark.parametrize("has_row_scales", [False, True])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 64), (3, 7, 64), (2, 16, 64)])
def test_products_and_gradients_are_close_to_exact_ones(
    shape: tuple[int, ...], has_bias: bool, has_row_scales: bool
) -> None:
    torch.manual_seed(1)
    layer = nn.Linear(64, 48, bias=has_bias)
    x = torch.randn(*shape, requires_grad=True)
    expected = layer(x)
    actual = multiply_fp8(x, layer.weight, layer.bias, has_row_scales=has_row_scales)
    assert actual.dtype == torch.bfloat16
    assert actual.shape == expected.shape
    assert measure_error(actual, expected) < FORWARD_ERROR
    upstream = torch.randn_like(expected).bfloat16()
    inputs = [x, *layer.parameters()]
    exact = torch.autograd.grad(expected, inputs, upstream.float())
    for gradient, reference in zip(torch.autograd.grad(actual, inputs, upstream), exact, strict=True):
        assert gradient.dtype == reference.dtype
        assert measure_error(gradient, reference) < GRADIENT_ERROR


def test_a_large_row_does_not_spoil_the_others_if_rows_have_their_own_scales() -> None:
    torch.manual_seed(1)
    weight = torch.randn(32, 64)
    x = torch.randn(16, 64)
    x[0] *= 1e5
    expected = x[1:] @ weight.t()
    by_row, by_tensor = (multiply_fp8(x, weight, None, has_row_scales=rows)[1:] for rows in (True, False))
    assert measure_error(by_row, expected) < FORWARD_ERROR
    assert measure_error(by_tensor, expected) > 5 * FORWARD_ERROR


@pytest.mark.parametrize("has_row_scales", [False, True])
def test_zeros_stay_zeros_and_a_nan_or_an_infinity_is_not_hidden(has_row_scales: bool) -> None:
    weight = torch.ones(16, 16)
    assert not multiply_fp8(torch.zeros(16, 16), weight, None, has_row_scales=has_row_scales).any()
    for bad in (float("nan"), float("inf")):
        x = torch.ones(16, 16)
        x[3, 4] = bad
        assert not multiply_fp8(x, weight, None, has_row_scales=has_row_scales)[3].isfinite().any()


def test_layers_of_blocks_compute_in_fp8_and_all_others_do_not() -> None:
    step = make_step(load("tiny-llama", [*TINY, SINGLE, "fp8.scaling=row"]))
    (model,) = step.engine.modules
    changed = {name for name, part in model.named_modules() if isinstance(part, Fp8Linear)}
    layers = ("attention.q", "attention.k", "attention.v", "attention.o", "ffn.gate", "ffn.up", "ffn.down")
    assert changed == {f"layers.{index}.{layer}" for index in range(2) for layer in layers}
    assert all(part.has_row_scales for part in model.modules() if isinstance(part, Fp8Linear))


def test_experts_and_their_router_stay_in_the_precision_of_the_run() -> None:
    step = make_step(load("tiny-moe", [*TINY, SINGLE, "fp8.scaling=tensor"]))
    (model,) = step.engine.modules
    changed = [name for name, part in model.named_modules() if isinstance(part, Fp8Linear)]
    assert changed
    assert not any(".ffn." in name for name in changed)


@pytest.mark.nightly_cases("tensor-tiny-llama", "row-tiny-gpt2")
@pytest.mark.parametrize("preset", ["tiny-llama", "tiny-gpt2"])
@pytest.mark.parametrize("scaling", ["tensor", "row"])
def test_a_run_in_fp8_follows_one_in_bf16(preset: str, scaling: str) -> None:
    in_bf16, in_fp8 = (curve(config_of(preset, [*TINY, SINGLE, f"fp8.scaling={way}"]), 4) for way in ("none", scaling))
    assert in_fp8["loss"] != in_bf16["loss"]
    assert in_fp8["loss"] == pytest.approx(in_bf16["loss"], abs=0.03)
    assert in_fp8["norm"] == pytest.approx(in_bf16["norm"], rel=0.1)
    assert not any(in_fp8["skipped"])


@pytest.mark.nightly_cases("parallel.strategy=ddp")
@pytest.mark.parametrize(
    "strategy",
    [
        ["parallel.strategy=ddp"],
        ["parallel.strategy=fsdp", "parallel.recompute=full"],
        pytest.param(["parallel.strategy=fsdp"], marks=pytest.mark.nightly),
        pytest.param(["parallel.strategy=hsdp", "parallel.shard=1"], marks=pytest.mark.nightly),
        pytest.param(["parallel.strategy=single", "parallel.pipeline=2"], marks=pytest.mark.nightly),
    ],
    ids=" ".join,
)
def test_ranks_train_alike_in_fp8(strategy: list[str]) -> None:
    in_bf16, alone = (
        curve(config_of("tiny-llama", [*TINY, SINGLE, scaling]), 4) for scaling in ("fp8.scaling=none", ROW)
    )
    config = config_of("tiny-llama", [*TINY, ROW, *strategy])
    for together in on_ranks("tests.trainer.curves:curve", ranks=2, config=config, micro=4):
        assert together["loss"] == pytest.approx(alone["loss"], abs=0.01)
        # They are nearer to the run in fp8 than to the one in bf16.
        assert distance(together, alone) < distance(together, in_bf16)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["fp8.scaling=column"], "fp8.scaling: 'column' is not allowed; allowed: none, tensor, row"),
        (
            ["fp8.scaling=row", "precision=fp32"],
            "fp8.scaling: row, but precision is fp32, and outputs of fp8 products are bf16; set precision to bf16",
        ),
        (
            ["fp8.scaling=row", "parallel.tensor=2"],
            "fp8.scaling: row, but parallel.tensor=2 splits the linear layers; set parallel.tensor to 1",
        ),
        (
            ["fp8.scaling=tensor", "lora.rank=4", "checkpoint.initial=weights"],
            "fp8.scaling: tensor, but lora.rank=4 changes the linear layers; set it to none, or lora.rank to 0",
        ),
    ],
)
def test_settings_that_fp8_cannot_serve_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("tiny-llama", ["precision=bf16", *settings])
    assert message in str(caught.value)


def test_a_model_without_fitting_layers_is_refused() -> None:
    config = load("tiny-resnet", ["precision=bf16", SINGLE, "fp8.scaling=row"])
    message = r"fp8\.scaling: row, but no layer of ResNet has linear layers whose sizes are multiples of 16"
    with pytest.raises(ConfigError, match=message):
        make_step(config)


def test_a_changed_layer_has_the_same_state() -> None:
    layer = nn.Linear(16, 32)
    before = {name: value.clone() for name, value in layer.state_dict().items()}
    use_fp8(layer, has_row_scales=True)
    assert {name: value.tolist() for name, value in layer.state_dict().items()} == {
        name: value.tolist() for name, value in before.items()
    }


def distance(curves: dict[str, list[float]], others: dict[str, list[float]]) -> float:
    """Return how far the gradient norms of two runs are from each other in the first steps, before they drift apart."""
    return sum(abs(a - b) for a, b in zip(curves["norm"][:3], others["norm"][:3], strict=True))


def measure_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the relative error, by the norm of the difference."""
    return float((actual.detach().float() - expected.detach()).norm() / expected.detach().norm())
