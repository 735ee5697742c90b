"""`auto` with weights and gradients in bf16: only strategies that store them, from an estimate that counts them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.launch import SMALL_LLAMA, losses
from tests.trainer.round_sizes import SIZES
from tests.trainer.test_stored_formats import BF16, MASTER
from trainer.__main__ import main
from trainer.auto import measure
from trainer.auto.choose import GIB, choose
from trainer.auto.memory import estimate_memory
from trainer.auto_settings import resolve_auto
from trainer.config.check import check
from trainer.config.layout import Layout
from trainer.config.load import load
from trainer.config.schema import Config, ParallelConfig
from trainer.data.registry import open_source
from trainer.life.outcome import Code
from trainer.models.init import fill
from trainer.models.registry import build_model
from trainer.optimizers.sizes import bound_state_bytes
from trainer.precision import cast_weights
from trainer.world import World

AUTO = ("parallel.strategy=auto", "batch.size=64", "precision=bf16")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((), "ddp"),
        (("optimizer.weights=bf16", "optimizer.gradients=bf16"), "ddp"),
        (("optimizer.weights=bf16",), "fsdp"),
        (("optimizer.weights=bf16", MASTER), "fsdp"),
        (("optimizer.gradients=bf16",), "fsdp"),
        # fully_shard takes the place of ddp.
        (("optimizer.gradients=bf16", "parallel.tensor=2"), "ddp"),
    ],
)
def test_only_strategies_that_store_the_formats_are_chosen(settings: tuple[str, ...], expected: str) -> None:
    config = load("tiny-llama", [*AUTO, *settings])
    choice = choose(config, SIZES, 100 * GIB, world_size=8, local_size=4)
    assert choice.parallel.strategy == expected
    chosen = load("tiny-llama", [*AUTO, *settings, f"parallel.strategy={choice.parallel.strategy}"])
    assert check(chosen) == []
    assert (
        choose(config, SIZES, 100 * GIB, 2 if "parallel.tensor=2" in settings else 1, 2).parallel.strategy == "single"
    )


def test_smaller_formats_fit_where_fp32_does_not() -> None:
    """2 GiB of fp32 weights: 8 GiB with gradients and moments, and half of it in bf16."""

    def find(*settings: str) -> str:
        config = load("tiny-llama", [*AUTO, *settings])
        sizes = measure_with_states(config)
        chosen = choose(config, sizes, 8 * GIB, world_size=8, local_size=4).parallel
        return f"{chosen.strategy} {chosen.recompute}"

    assert find() == "fsdp none"
    bf16 = ("optimizer.weights=bf16", "optimizer.gradients=bf16")
    assert find(*bf16, "optimizer.moments=bf16") == "ddp none"
    assert find(*bf16, MASTER) == "fsdp none"


@pytest.mark.parametrize("reduce", ["fp32", "bf16"])
@pytest.mark.parametrize("accumulate", ["auto", "defer"])
def test_both_engines_scatter_the_gradients_of_a_single_micro_batch_at_once(reduce: Any, accumulate: Any) -> None:
    def estimate(engine: Any, micro_batches: int) -> int:
        parallel = ParallelConfig(strategy="fsdp", zero=1, engine=engine, reduce=reduce, accumulate=accumulate)
        return estimate_memory(SIZES, parallel, Layout(shard=8), "bf16", 1, micro_batches).gradients

    assert estimate("muster", 1) == estimate("torch", 1) == 4 * SIZES.parameters // 8
    assert estimate("muster", 2) == estimate("torch", 2)


def measure_with_states(config: Config) -> Any:
    """Return sizes of a model of half a billion weights, with the optimizer's state of these settings."""
    return replace(SIZES, states=bound_state_bytes(SIZES.parameters, config.optimizer))


@pytest.mark.parametrize("preset", ["tiny-llama", "tiny-gpt2"])
def test_measured_activations_are_those_of_bf16_weights(preset: str) -> None:
    config = load(preset, [*BF16, "parallel.strategy=single"])
    samples = open_source(config).fetch(np.arange(8), 0)["inputs"]
    sizes = measure.measure_sizes(config, {"inputs": torch.as_tensor(samples[:2])}, "cpu")
    each = (count_stored(config, samples) - count_stored(config, samples[:4])) / 4
    assert sizes.activations == pytest.approx(each, rel=0.1)


def count_stored(config: Config, inputs: Any) -> int:
    """Return the bytes that a forward pass of the real model stores for the backward pass, without weights."""
    model = build_model(config.model)
    model.init_buffers(torch.device("cpu"))
    fill([model], seed=1)
    cast_weights(model, config.optimizer.weights)
    stored: dict[int, torch.Tensor] = {}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def store(tensor: torch.Tensor) -> torch.Tensor:
        stored.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    cast = torch.autocast("cpu", dtype=torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(store, lambda tensor: tensor), cast:
        model(torch.as_tensor(inputs))
    return sum(tensor.untyped_storage().nbytes() for address, tensor in stored.items() if address not in weights)


def test_an_earlier_choice_for_other_formats_is_not_used(tmp_path: Path) -> None:
    def resolve(*settings: str) -> bool:
        config = load("tiny-llama", ["precision=bf16", *settings])
        world = World(0, 1, 0, 1, "host", torch.device("cpu"), ())
        resolved = resolve_auto(config, world, open_source(config), tmp_path)
        resolved.save(tmp_path)
        return resolved.record is None

    assert [resolve(), resolve()] == [False, True]
    for setting in ("optimizer.weights=bf16", "optimizer.gradients=bf16"):
        assert [resolve(setting), resolve(setting)] == [False, True]
    assert not resolve(*BF16, MASTER)


def test_a_run_chooses_its_strategy_with_gradients_in_another_format(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = [*SMALL_LLAMA, "precision=bf16", "optimizer.gradients=bf16", "parallel.strategy=auto", "steps=2"]
    assert main([*settings, f"run.folder={tmp_path}"]) == Code.FINISHED, capfd.readouterr().err
    assert "single, micro-batch" in capfd.readouterr().out
    assert sorted(losses(tmp_path)) == [1, 2]
