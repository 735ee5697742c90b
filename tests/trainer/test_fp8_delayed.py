"""Fp8 products with delayed scales: the history of largest values, the scales that follow from it, and exact resume."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch._dynamo.utils import counters

from tests.trainer.curves import config_of, curve, global_batch, make_step
from tests.trainer.ranks import on_ranks
from tests.trainer.resumed_rank import train_across_save
from trainer.config.errors import ConfigError
from trainer.config.load import from_dict, load
from trainer.fp8_history import STEPS
from trainer.models import fp8, fp8_cast, llama
from trainer.models.fp8 import DelayedScales, Fp8Linear, multiply_fp8, use_fp8
from trainer.models.fp8_cast import cast_fp8
from trainer.models.fp8_formats import E4M3, E5M2
from trainer.step import Step, StepResult

TINY = ["precision=bf16", "model.seq_len=16", "model.layers=2", "batch.size=8", "batch.micro=4"]
SINGLE, DELAYED = "parallel.strategy=single", "fp8.scaling=delayed"
LAYERS = ("attention.q", "attention.k", "attention.v", "attention.o", "ffn.gate", "ffn.up", "ffn.down")
HERE = "tests.trainer.test_fp8_delayed"
NAMES = [f"fp8.layers.{index}.{layer}" for index in range(2) for layer in LAYERS]


def test_values_beyond_the_scale_are_clamped() -> None:
    values, transposed, figures = cast_fp8(torch.tensor([[1.0, -5.0], [2.0, 0.5]]), torch.tensor(2 / 448), E4M3)
    assert values.float().tolist() == [[224.0, -448.0], [448.0, 112.0]]
    assert transposed.float().tolist() == [[224.0, 448.0], [-448.0, 112.0]]
    assert figures.tolist() == [pytest.approx(2 / 448), 5.0]


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_without_a_scale_it_is_derived_from_the_values(dtype: torch.dtype) -> None:
    values, _, figures = cast_fp8(torch.tensor([[1.0, -4.0]]), torch.tensor(0.0), dtype)
    limit = torch.finfo(dtype).max
    assert values.float().tolist() == [[limit / 4, -limit]]
    assert figures.tolist() == [float(torch.tensor(4.0) / limit), 4.0]
    assert cast_fp8(torch.zeros(2, 2), torch.tensor(0.0), dtype)[0].float().tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_products_without_a_history_are_those_of_dynamic_scales() -> None:
    torch.manual_seed(1)
    inputs = [torch.randn(32, 64, requires_grad=True), torch.randn(48, 64, requires_grad=True)]
    upstream = torch.randn(32, 48).bfloat16()
    results = []
    for delayed in (None, make_scales(0.0, 0.0, 0.0)):
        y = multiply_fp8(inputs[0], inputs[1], None, has_row_scales=False, delayed=delayed)
        results.append((y, *torch.autograd.grad(y, inputs, upstream)))
    # A product with the reciprocal of a scale may be rounded differently from a quotient.
    for dynamic, first in zip(*results, strict=True):
        assert (dynamic.float() - first.float()).norm() < 0.01 * dynamic.float().norm()


def test_a_product_records_the_largest_values_of_its_operands() -> None:
    delayed = make_scales(1.0, 1.0, 1.0)
    for factor in (2.0, 1.0):
        x, weight = torch.ones(16, 16) * 3 * factor, torch.ones(16, 16, requires_grad=True)
        y = multiply_fp8(x, weight, None, has_row_scales=False, delayed=delayed)
        y.backward(torch.full_like(y, 5 * factor))
    assert delayed.maxima.tolist() == [6.0, 1.0]
    assert float(delayed.gradient_maximum) == 10.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_a_nan_or_an_infinity_is_not_hidden(bad: float, scale: float) -> None:
    for operand in range(3):
        operands = [torch.ones(16, 16) for _ in range(3)]
        operands[operand][3, 4] = bad
        x, weight, upstream = (tensor.requires_grad_() for tensor in operands)
        y = multiply_fp8(x, weight, None, has_row_scales=False, delayed=make_scales(scale, scale, scale))
        gradients = torch.autograd.grad(y, (x, weight), upstream.bfloat16())
        results = gradients if operand == 2 else (y,)
        assert not any(result.isfinite().any() for result in results)


def test_history_and_scales_follow_the_largest_values_of_the_last_steps() -> None:
    step = make_step(load("tiny-llama", [*TINY, SINGLE, DELAYED]))
    assert [name for name in step.tensors() if name.startswith("fp8.")] == NAMES
    (model,) = step.engine.modules
    layer = dict(model.named_modules())["layers.1.attention.o"]
    assert isinstance(layer, Fp8Linear)
    assert layer.delayed is not None
    seen: list[list[float]] = [[], []]
    layer.register_forward_pre_hook(lambda _, args: seen[0].append(float(args[0].bfloat16().abs().max())))
    layer.register_full_backward_hook(lambda _, __, gradients: seen[1].append(float(gradients[0].abs().max())))
    rows: list[list[float]] = []
    for index in range(STEPS + 2):
        weight = float(layer.weight.bfloat16().abs().max())
        run(step, index)
        # A step sees the steps before it, not itself.
        last = torch.tensor(rows[-STEPS:] or [[0.0, 0.0, 0.0]]).amax(0)
        assert torch.equal(layer.delayed.scales, last / torch.tensor([448.0, 448.0, 57344.0]))
        # Two micro-batches have the same weight.
        rows.append([max(seen[0]), weight, max(seen[1])])
        assert [len(values) for values in seen] == [2, 2]
        seen[0].clear()
        seen[1].clear()
    history = step.tensors()["fp8.layers.1.attention.o"]
    assert history.tolist() == rows[STEPS:] + rows[2:STEPS]


def test_a_skipped_step_leaves_the_history_as_it_was() -> None:
    step = make_step(load("tiny-llama", [*TINY, SINGLE, DELAYED]))
    run(step, 0)
    before = {name: step.tensors()[name].clone() for name in NAMES}
    weight = dict(step.engine.named_parameters())["layers.0.ffn.down.weight"]
    good = weight.detach().clone()
    with torch.no_grad():
        weight[0, 0] = float("inf")
    assert float(run(step, 1).skipped) == 1.0
    with torch.no_grad():
        weight.copy_(good)
    assert all(torch.equal(step.tensors()[name], before[name]) for name in NAMES)
    assert float(run(step, 2).skipped) == 0.0
    assert [name for name in NAMES if not step.tensors()[name][2].all()] == []


@pytest.mark.nightly
@pytest.mark.parametrize("preset", ["tiny-llama", pytest.param("tiny-gpt2", marks=pytest.mark.nightly)])
def test_a_run_follows_one_with_dynamic_scales(preset: str) -> None:
    tensor, delayed = (
        curve(config_of(preset, [*TINY, SINGLE, f"fp8.scaling={way}"]), 4, steps=50) for way in ("tensor", "delayed")
    )
    assert delayed["loss"] != tensor["loss"]
    assert delayed["loss"][-1] < delayed["loss"][0] - 0.1
    assert delayed["loss"] == pytest.approx(tensor["loss"], abs=0.03)
    assert not any(delayed["skipped"])


@pytest.mark.nightly_cases("tiny-gpt2")
@pytest.mark.parametrize("preset", ["tiny-llama", "tiny-gpt2"])
def test_gradients_are_as_exact_as_with_dynamic_scales(preset: str) -> None:
    """Runs drift apart once a bit differs, so all gradients of a step are computed at the weights of the same run."""
    ways = ([DELAYED], ["fp8.scaling=tensor"], ["precision=fp32"])
    steps = [make_step(load(preset, [*TINY, SINGLE, *way])) for way in ways]
    gradients: list[torch.Tensor] = []
    for step in steps:
        step.after_gradients = lambda _batch, _loss, step=step: gradients.append(join(step.optimizer.gradients()))
    errors = []
    for index in range(STEPS + 8):
        for step in steps[1:]:
            copy_weights(steps[0], step)
        gradients.clear()
        losses = [float(run(step, index).loss) for step in steps]
        delayed, tensor, exact = gradients
        assert losses[0] == pytest.approx(losses[2], abs=0.01)
        assert float(delayed.norm()) == pytest.approx(float(exact.norm()), rel=0.03)
        errors.append([float((each - exact).norm() / exact.norm()) for each in (delayed, tensor)])
    of_delayed, of_tensor = torch.tensor(errors).mean(0).tolist()
    assert 0 < of_delayed < 1.1 * of_tensor < 0.15


@pytest.mark.nightly_cases("tiny-gpt2")
@pytest.mark.parametrize("preset", ["tiny-llama", "tiny-gpt2"])
def test_casts_of_stored_weights_change_no_bit_of_a_run_that_rounds_gradients_anyway(preset: str) -> None:
    config = config_of(preset, [*TINY, SINGLE, DELAYED, "batch.micro=8", "optimizer.gradients=bf16"])
    stored = curve(config, 8, steps=STEPS + 2)
    with patch.object(fp8, "casts_stored_weight", return_value=False) as asks:
        assert curve(config, 8, steps=STEPS + 2) == stored
    assert asks.called


@pytest.mark.nightly_cases("selective")
@pytest.mark.parametrize("recompute", ["full", "selective"])
def test_recomputed_layers_count_once(recompute: str) -> None:
    plain, recomputed = (
        trace_history(config_of("tiny-llama", [*TINY, SINGLE, DELAYED, f"parallel.recompute={way}"]), steps=3)
        for way in ("none", recompute)
    )
    assert plain == recomputed


@pytest.mark.parametrize("recompute", ["none", pytest.param("full", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("mode", ["blocks", pytest.param("whole", marks=pytest.mark.nightly)])
def test_a_compiled_run_has_no_graph_break_and_compiles_nothing_later(mode: str, recompute: str) -> None:
    settings = [*TINY, SINGLE, DELAYED, "compile.backend=aot_eager", f"parallel.recompute={recompute}"]
    torch.compiler.reset()
    counters.clear()
    step = make_step(load("tiny-llama", [*settings, f"compile.mode={mode}"]))
    graphs, losses = [], []
    for index in range(4):
        losses.append(float(run(step, index).loss))
        graphs.append(counters["stats"]["unique_graphs"])
    assert not counters["graph_break"]
    assert graphs[1:] == [graphs[0]] * 3
    eager = make_step(load("tiny-llama", [*settings, "compile.mode=none"]))
    assert losses == pytest.approx([float(run(eager, index).loss) for index in range(4)], abs=0.01)
    for name in NAMES:
        assert torch.allclose(step.tensors()[name], eager.tensors()[name], rtol=0.1)


@pytest.mark.nightly_cases("blocks")
@pytest.mark.parametrize("mode", ["none", "blocks"])
def test_a_feed_forward_layer_casts_its_input_once_and_computes_the_same(mode: str) -> None:
    settings = [*TINY, SINGLE, DELAYED, "compile.backend=aot_eager", f"compile.mode={mode}"]
    counts: list[int] = []
    losses: list[list[float]] = []
    for can_feed_forward in (llama.can_feed_forward, lambda _layers: False):
        torch.compiler.reset()
        step = make_step(load("tiny-llama", settings))
        losses.append([])
        with patch.object(llama, "can_feed_forward", can_feed_forward):
            run(step, 0)
            with patch.object(fp8_cast, "cast_plainly", side_effect=fp8_cast.cast_plainly) as casts:
                losses[-1] += [float(run(step, index).loss) for index in (1, 2)]
        counts.append(casts.call_count)
        histories = [step.tensors()[f"fp8.layers.0.ffn.{layer}"][:, 0].tolist() for layer in ("gate", "up")]
        assert histories[0] == histories[1]
    # The inputs of up and down, and the gradients of gate and up: in 2 layers, 2 micro-batches and 2 steps.
    assert counts[1] - counts[0] == 4 * 8
    assert losses[0] == pytest.approx(losses[1], abs=0.002)


def test_a_feed_forward_layer_is_as_exact_as_its_parts_and_has_their_largest_values() -> None:
    torch.manual_seed(1)
    layer = llama.FeedForward(load("tiny-llama", []).model)
    x = torch.randn(3, 5, layer.gate.in_features, requires_grad=True)
    upstream = torch.randn(3, 5, layer.down.out_features).bfloat16()
    y = layer(x)
    exact = (y, *torch.autograd.grad(y, (x, *layer.parameters()), upstream.float()))
    errors, maxima = [], []
    for can_feed_forward in (llama.can_feed_forward, lambda _layers: False):
        for part in (layer.gate, layer.up, layer.down):
            use_fp8(part, has_row_scales=False)
            part.delayed = make_scales(0.01, 1e-3, 1e-4)
        with patch.object(llama, "can_feed_forward", can_feed_forward), torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
        results = (y, *torch.autograd.grad(y, (x, *layer.parameters()), upstream))
        pairs = zip(results, exact, strict=True)
        errors.append([float(((ours - other).norm() / other.norm()).detach()) for ours, other in pairs])
        parts = [part.delayed for part in (layer.gate, layer.up, layer.down)]
        maxima.append([torch.cat((part.maxima, part.gradient_maximum[None])) for part in parts])
    for together, apart in zip(*errors, strict=True):
        assert 0 < together < 1.05 * apart < 0.15
    # The parts round more often to bf16.
    for together, apart in zip(*maxima, strict=True):
        assert torch.allclose(together, apart, rtol=2**-6)


def test_weights_are_cast_as_they_are_stored_and_their_gradients_are_not_rounded() -> None:
    torch.manual_seed(1)
    x, weight = torch.randn(32, 64), torch.randn(48, 64, requires_grad=True)
    results = []
    for stored in (weight, weight.bfloat16()):
        y = multiply_fp8(x, stored, None, has_row_scales=False, delayed=make_scales(0.01, 0.01, 1e-4))
        results.append((y, *torch.autograd.grad(y, weight, torch.ones_like(y))))
    assert torch.equal(results[0][0], results[1][0])
    assert not torch.equal(results[0][1], results[1][1])
    assert torch.equal(results[0][1].bfloat16().float(), results[1][1])


def test_an_evaluation_changes_nothing() -> None:
    step = make_step(load("tiny-llama", [*TINY, SINGLE, DELAYED]))
    run(step, 0)
    (model,) = step.engine.modules
    layers = [part for part in model.modules() if isinstance(part, Fp8Linear)]
    for part in layers:
        part.delayed.maxima.zero_()
    model.eval()
    with torch.no_grad():
        assert model(torch.zeros(2, 16, dtype=torch.int64)).isfinite().all()
    assert not any(part.delayed.maxima.any() for part in layers)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_agree_on_the_largest_values(strategy: str) -> None:
    alone = trace_history(config_of("tiny-llama", [*TINY, SINGLE, DELAYED]), steps=1)
    config = config_of("tiny-llama", [*TINY, DELAYED, f"parallel.strategy={strategy}"])
    first, second = on_ranks(f"{HERE}:trace_history", ranks=2, config=config, steps=1)
    assert first == second
    # Inputs and weights are the same as on one rank; gradients of a micro-batch are those of a smaller mean.
    for name, values in alone.items():
        together = torch.tensor(first[name])
        assert torch.allclose(together[0, :2], torch.tensor(values)[0, :2], rtol=0.02)


@pytest.mark.parametrize("strategy", ["single", "ddp", "fsdp", pytest.param("hsdp", marks=pytest.mark.nightly)])
def test_a_resumed_run_has_the_same_bits(strategy: str, tmp_path: Path) -> None:
    settings = [*TINY, DELAYED, f"parallel.strategy={strategy}"]
    config = config_of("tiny-llama", settings + (["parallel.shard=1"] if strategy == "hsdp" else []))
    ranks = 1 if strategy == "single" else 2
    straight, resumed = (
        on_ranks(f"{HERE}:train_and_save", ranks=ranks, config=config, folder=str(tmp_path), resumes=resumes)
        for resumes in (False, True)
    )
    for before, after in zip(straight, resumed, strict=True):
        assert after == before
        assert any(any(row) for rows in after["history"].values() for row in rows)


def test_a_run_can_start_and_stop_using_delayed_scales(tmp_path: Path) -> None:
    for before, after in (("tensor", "delayed"), ("delayed", "tensor")):
        configs = [config_of("tiny-llama", [*TINY, SINGLE, f"fp8.scaling={way}"]) for way in (before, after)]
        folder = str(tmp_path / before)
        (straight,), (changed,) = (
            on_ranks(f"{HERE}:train_and_save", ranks=1, config=config, folder=folder, resumes=resumes)
            for config, resumes in zip(configs, (False, True), strict=True)
        )
        assert changed["losses"] == pytest.approx(straight["losses"], abs=0.03)
        assert bool(changed["history"]) == (after == "delayed")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["fp8.scaling=later"], "fp8.scaling: 'later' is not allowed; allowed: none, tensor, row, delayed"),
        (["fp8.scaling=16"], "allowed: none, tensor, row, delayed"),
        (
            [DELAYED, "parallel.pipeline=2"],
            "fp8.scaling: delayed, but parallel.pipeline=2 has several micro-batches in flight; use tensor or row, "
            "or set parallel.pipeline to 1",
        ),
        ([DELAYED, "parallel.tensor=2"], "fp8.scaling: delayed, but parallel.tensor=2 splits the linear layers"),
        ([DELAYED, "precision=fp32"], "fp8.scaling: delayed, but precision is fp32"),
        ([DELAYED, "lora.rank=4", "checkpoint.initial=weights"], "fp8.scaling: delayed, but lora.rank=4"),
        ([DELAYED, "optimizer.weights=bf16"], "optimizer.weights: bf16, but fp8.scaling=delayed"),
    ],
)
def test_settings_that_delayed_scales_cannot_serve_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("tiny-llama", ["precision=bf16", *settings])
    assert message in str(caught.value)


def train_and_save(config: dict[str, Any], folder: str, resumes: bool) -> dict[str, Any]:
    trainer, results = train_across_save(config, folder, resumes)
    return {**results, "history": list_history(trainer._step)}


def trace_history(config: dict[str, Any], steps: int) -> dict[str, Any]:
    """Return the history of each layer after some steps."""
    step = make_step(from_dict(config))
    for index in range(steps):
        run(step, index)
    return list_history(step)


def list_history(step: Step) -> dict[str, Any]:
    return {name: value.tolist() for name, value in step.tensors().items() if name.startswith("fp8.")}


def run(step: Step, index: int) -> StepResult:
    """Run a step over this rank's share of a batch, in two micro-batches on a single rank."""
    mesh = step.engine.mesh
    size = step._config.batch.size // mesh.layout.dp_size
    batch = {key: value[mesh.dp_rank * size :][:size] for key, value in global_batch(step._config, index).items()}
    return step.run(batch, 4)


def join(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([gradient.detach().float().flatten() for gradient in gradients])


@torch.no_grad()
def copy_weights(source: Step, target: Step) -> None:
    weights = dict(source.engine.named_parameters())
    for name, weight in target.engine.named_parameters():
        weight.copy_(weights[name])


def make_scales(*scales: float) -> DelayedScales:
    return DelayedScales(torch.tensor(scales), torch.zeros(2), torch.zeros(()))
