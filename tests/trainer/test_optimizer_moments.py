"""Moments in bf16 and int8: small, close to fp32, unbiased, and rounded the same way after a resume."""

from __future__ import annotations

import weakref
from typing import Any
from unittest.mock import patch

import pytest
import torch

from tests.trainer.test_optimizer import parameters, set_gradients
from trainer.config.schema import MomentFormat, OptimizerConfig
from trainer.optimizers import chunks
from trainer.optimizers.eight_bit import dequantize, get_levels, quantize
from trainer.optimizers.moments import round_to_bf16
from trainer.optimizers.optimizer import Optimizer
from trainer.optimizers.sizes import count_state_bytes
from trainer.optimizers.slot import Slot

SHAPES = {"matrix": (24, 512), "conv": (4, 16, 2, 2), "odd": (6, 7), "vector": (40,)}
# Largest distance from the weights of an fp32 run after 20 steps, relative to how far the weights moved.
TOLERANCE = {"bf16": 0.02, "int8": 0.2}


@pytest.mark.parametrize("moments", ["bf16", "int8"])
@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_weights_stay_close_to_those_with_fp32_moments(name: Any, moments: MomentFormat) -> None:
    start, exact, ours = parameters(SHAPES), parameters(SHAPES), parameters(SHAPES)
    for values, kind in ((exact, "fp32"), (ours, moments)):
        train(Optimizer(values.items(), OptimizerConfig(name=name, moments=kind)), values, range(20))
    for key, value in ours.items():
        assert measure_distance(value, exact[key], start[key]) < TOLERANCE[moments], key
    assert (moments == "bf16") == (not torch.equal(ours["vector"], exact["vector"]))


@pytest.mark.parametrize("moments", ["bf16", "int8"])
def test_a_slow_average_does_not_stand_still(moments: MomentFormat) -> None:
    """A step changes the second moment by 0.1 %, which is less than half the distance of two bf16 numbers."""
    ours = parameters({"matrix": (16, 256)})
    optimizer = Optimizer(ours.items(), OptimizerConfig(beta2=0.999, weight_decay=0, moments=moments))
    set_gradients(ours, 0)
    optimizer.step(0.0, None, None, seed=0)
    before = second_moment(optimizer).mean()
    for step in range(1, 301):
        ours["matrix"].grad = torch.zeros(16, 256)
        optimizer.step(0.0, None, None, seed=step)
    assert float(second_moment(optimizer).mean() / before) == pytest.approx(0.999**300, rel=0.03)


@pytest.mark.parametrize("moments", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("name", ["adamw", "sgd", "muon"])
def test_an_optimizer_continues_from_saved_tensors_bit_for_bit(name: Any, moments: MomentFormat) -> None:
    straight, resumed = parameters(SHAPES), parameters(SHAPES)
    first, second = (Optimizer(v.items(), OptimizerConfig(name=name, moments=moments)) for v in (straight, resumed))
    train(first, straight, range(3))
    with torch.no_grad():
        for key, value in {**resumed, **second.tensors()}.items():
            value.copy_({**straight, **first.tensors()}[key])
    for optimizer, values in ((first, straight), (second, resumed)):
        train(optimizer, values, range(3, 6))
    expected = {**straight, **first.tensors()}
    assert all(torch.equal(value, expected[key]) for key, value in {**resumed, **second.tensors()}.items())


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd"])
@pytest.mark.parametrize(("moments", "each"), [("fp32", 4.0), ("bf16", 2.0), ("int8", 1.0)])
def test_the_state_has_the_predicted_size(name: Any, moments: MomentFormat, each: float) -> None:
    config = OptimizerConfig(name=name, moments=moments)
    tensors = Optimizer(parameters(SHAPES).items(), config).tensors()
    size = sum(value.nbytes for key, value in tensors.items() if key != "updates")
    assert size == count_state_bytes(SHAPES.items(), config)
    large = sum(value.nbytes for key, value in tensors.items() if key.startswith("matrix"))
    count = 2 if name == "adamw" else 1
    assert large == pytest.approx(each * count * 24 * 512, rel=0.02)


@pytest.mark.parametrize("moments", ["bf16", "int8"])
def test_a_large_parameter_is_updated_in_parts(moments: MomentFormat) -> None:
    config = OptimizerConfig(moments=moments)
    start, whole, parts = parameters(SHAPES), parameters(SHAPES), parameters(SHAPES)
    train(Optimizer(whole.items(), config), whole, range(3))
    with patch.object(chunks, "CHUNK_VALUES", 1200):
        train(Optimizer(parts.items(), config), parts, range(3))
    for key, value in parts.items():
        assert measure_distance(value, whole[key], start[key]) < TOLERANCE[moments], key


def test_the_rounding_of_a_parameter_does_not_depend_on_the_others() -> None:
    """Tensor-parallel ranks hold the same norms, but parts of different sizes of an uneven vocabulary."""
    few, many = ({"table": (rows, 64), "norm": (1000,)} for rows in (3, 17))
    states = []
    for shapes in (few, many):
        values = parameters(shapes)
        optimizer = Optimizer(values.items(), OptimizerConfig(moments="bf16"))
        with patch.object(chunks, "CHUNK_VALUES", 1200):
            for step in range(2):
                values["norm"].grad = torch.linspace(-1, 1, 1000) / (step + 1)
                values["table"].grad = torch.ones(shapes["table"])
                optimizer.step(1e-2, None, None, seed=step)
        states.append(optimizer.tensors())
    assert torch.equal(states[0]["norm.first"], states[1]["norm.first"])
    assert torch.equal(states[0]["norm.second"], states[1]["norm.second"])


@pytest.mark.parametrize("is_signed", [True, False])
def test_rounding_to_a_level_preserves_the_mean(is_signed: bool) -> None:
    levels = get_levels(is_signed, torch.device("cpu"))
    assert torch.equal(levels, levels.unique())
    assert 250 < len(levels) <= 256
    values = torch.linspace(-1 if is_signed else 0.001, 1, 128).expand(4000, 128)
    noise = torch.rand(4000, 128, generator=torch.Generator().manual_seed(1))
    stored = dequantize(*quantize(values, noise, is_signed=is_signed), is_signed=is_signed)
    torch.testing.assert_close(stored.mean(0), values[0], rtol=0.02, atol=1e-3)
    assert float((stored - values).abs().max()) < 0.02


def test_zeros_stay_zero_and_small_second_moments_stay_positive() -> None:
    noise = torch.zeros(2, 32)
    for is_signed in (True, False):
        zeros = dequantize(*quantize(torch.zeros(2, 32), noise, is_signed=is_signed), is_signed=is_signed)
        assert not zeros.any()
    tiny = torch.full((2, 32), 1e-12)
    tiny[:, 0] = 1.0
    assert (dequantize(*quantize(tiny, noise, is_signed=False), is_signed=False) > 0).all()


def test_rounding_to_bf16_preserves_the_mean_and_exact_values() -> None:
    values = torch.tensor([1.001, -3.14159, 1e-20, 0.0, -0.5, torch.inf]).repeat(4000, 1)
    rounded = round_to_bf16(values, torch.rand(4000, 6, generator=torch.Generator().manual_seed(1)))
    torch.testing.assert_close(rounded[:, :3].float().mean(0), values[0, :3], rtol=2e-4, atol=0)
    assert torch.equal(rounded[:, 3:].float(), values[:, 3:])


def test_rounding_to_bf16_preserves_nan_whatever_its_bits() -> None:
    values = torch.tensor([0x7FFFFFFF, 0x7FC00000, -1, 0x7F800000], dtype=torch.int32).view(torch.float32)
    rounded = round_to_bf16(values, torch.full((4,), 0.999))
    assert rounded.isnan().tolist() == [True, True, True, False]
    assert rounded[3] == torch.inf


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_copies_of_a_chunk_are_freed_before_the_next(name: Any) -> None:
    value = torch.nn.Parameter(torch.randn(64, 32).bfloat16())
    optimizer = Optimizer([("weight", value)], OptimizerConfig(name=name, weights="bf16", gradients="bf16"))
    copies: list[weakref.ref[torch.Tensor]] = []
    read = Slot.read_gradients

    def watch(slot: Slot, rows: slice) -> torch.Tensor:
        assert [copy for copy in copies if copy() is not None] == []
        gradients = read(slot, rows)
        copies.append(weakref.ref(gradients))
        return gradients

    value.grad = torch.randn(64, 32).bfloat16()
    with patch.object(chunks, "CHUNK_VALUES", 512), patch.object(Slot, "read_gradients", watch):
        optimizer.step(1e-3, None, None)
    assert len(copies) == 4


def train(optimizer: Optimizer, values: dict[str, torch.nn.Parameter], steps: range) -> None:
    for step in steps:
        set_gradients(values, step)
        optimizer.step(1e-2, torch.tensor(2.0), torch.tensor(0.0), seed=step)


@torch.no_grad()
def measure_distance(value: torch.Tensor, expected: torch.Tensor, start: torch.Tensor) -> float:
    """Return the distance from the expected value, relative to how far that is from the start."""
    return float((value - expected).norm() / (expected - start).norm())


def second_moment(optimizer: Optimizer) -> torch.Tensor:
    tensors = optimizer.tensors()
    if "matrix.second_scale" not in tensors:
        return tensors["matrix.second"].float()
    codes = tensors["matrix.second"].view(-1, 256)
    return dequantize(codes, tensors["matrix.second_scale"].flatten(), is_signed=False)
