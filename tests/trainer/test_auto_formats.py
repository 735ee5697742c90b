"""`auto` with weights and gradients in bf16: only strategies that store them, from an estimate that counts them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.curves import make_step
from tests.trainer.launch import SMALL_LLAMA, losses
from tests.trainer.ranks import on_ranks
from tests.trainer.test_auto import SIZES
from tests.trainer.test_stored_formats import BF16, FORMATS, MASTER, count_bytes, make_config, run_steps
from trainer.__main__ import main
from trainer.auto import measure
from trainer.auto.choose import GIB, choose
from trainer.auto.memory import estimate_memory
from trainer.auto_settings import resolve_auto
from trainer.config.check import check
from trainer.config.layout import resolve_layout
from trainer.config.load import from_dict, load
from trainer.config.schema import Config
from trainer.data.registry import open_source
from trainer.life.outcome import Code
from trainer.models.init import fill
from trainer.models.registry import build_model
from trainer.optimizers.sizes import bound_state_bytes
from trainer.parallel.gradients import to_local
from trainer.precision import cast_weights
from trainer.world import World

HERE = "tests.trainer.test_auto_formats"
AUTO = ("parallel.strategy=auto", "batch.size=64", "precision=bf16")
# Strategies that store gradients whole, by unit, and for the sum over replicas; each sums two micro-batches.
STRATEGIES = ("single", "ddp", "fsdp zero=1", "fsdp zero=2", "fsdp zero=3", "hsdp shard=2", "fsdp accumulate=defer")
MICRO_BATCHES = 2


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


def list_cases() -> list[Any]:
    cases = []
    for strategy in STRATEGIES:
        for name in ("bf16 weights", "bf16 weights, fp32 copies", "bf16 weights, fp32 gradients", "bf16 gradients"):
            is_mixed = name in ("bf16 weights, fp32 gradients", "bf16 gradients")
            if strategy == "ddp" and is_mixed:
                continue
            is_daily = name == "bf16 weights" or strategy == "fsdp zero=1"
            marks = [] if is_daily else [pytest.mark.nightly]
            cases.append(pytest.param(strategy, FORMATS[name], marks=marks, id=f"{strategy}: {name}"))
        reduced = (*FORMATS["bf16 weights"], "parallel.reduce=bf16")
        if strategy != "single":
            cases.append(pytest.param(strategy, reduced, id=f"{strategy}: reduced in bf16"))
    return cases


@pytest.mark.parametrize(("strategy", "formats"), list_cases())
def test_the_estimate_is_what_a_rank_allocates(strategy: str, formats: tuple[str, ...]) -> None:
    config = make_config(strategy, formats)
    ranks = 1 if strategy == "single" else 4
    settings = from_dict(config)
    layout = resolve_layout(settings.parallel, ranks, ranks)
    for counted in on_ranks(f"{HERE}:count_allocated", ranks=ranks, config=config):
        sizes = measure.measure_sizes(settings, {"inputs": torch.zeros(2, 64, dtype=torch.int64)}, "cpu")
        need = estimate_memory(
            sizes, settings.parallel, layout, settings.precision, 1, MICRO_BATCHES, settings.optimizer
        )
        # Rows that the ranks do not divide make a shard a little larger.
        assert counted["weights"] == pytest.approx(need.weights, rel=0.02)
        assert counted["states"] == pytest.approx(need.states, rel=0.02)
        copies = 0
        if strategy == "ddp" and settings.parallel.reduce != settings.optimizer.gradients:
            # The copies of buckets are gone when the gradients can be counted.
            copies = 4 * sizes.trainable
        assert counted["gradients"] == pytest.approx(need.gradients - copies, rel=0.02)


def count_allocated(config: dict[str, Any]) -> dict[str, int]:
    """Return the bytes of this rank's weights and state, and the most of its gradients and gathered weights.

    Both are counted after each micro-batch.
    """
    settings = from_dict(config)
    step = make_step(settings)
    size = settings.batch.size // step.engine.mesh.layout.dp_size
    gradients: list[int] = []
    gathered: list[int] = []

    def count(*_: int) -> None:
        gradients.append(count_gradients(step))
        gathered.append(count_gathered(step))

    step.engine.before_micro_batch = step.before_update = count
    run_steps(step, config, range(1), micro=size // MICRO_BATCHES)
    assert len(gradients) == MICRO_BATCHES
    state = {name: value for name, value in step.optimizer.tensors().items() if name != "updates"}
    return {
        "weights": sum(count_bytes(value) for _, value in step.engine.named_parameters()),
        "states": sum(map(count_bytes, state.values())),
        "gradients": max(gradients),
        "gathered": max(gathered),
    }


def count_gradients(step: Any) -> int:
    """Return the bytes of all gradients, including those that fully_shard keeps to itself."""
    stored: dict[int, torch.Tensor] = {}
    for _, value in step.engine.named_parameters():
        if value.grad is not None:
            stored[id(value.grad)] = value.grad
    for group in list_shard_groups(step.engine.modules[0]):
        partial = group._partial_reduce_output
        parts = [partial] if partial is not None else []
        for each in group.fsdp_params:
            unsharded = getattr(each, "_unsharded_param", None)
            parts += [] if unsharded is None or unsharded.grad is None else [unsharded.grad]
        stored |= {id(part): part for part in parts}
    return sum(map(count_bytes, stored.values()))


def count_gathered(step: Any) -> int:
    """Return the bytes of the whole weights that fully_shard has at the moment."""
    parameters = [each for group in list_shard_groups(step.engine.modules[0]) for each in group.fsdp_params]
    weights = [to_local(each.unsharded_param) for each in parameters]
    return sum(count_bytes(weight) for weight in weights if weight.untyped_storage().nbytes())


def list_shard_groups(model: Any) -> list[Any]:
    """Return the groups of parameters that are gathered together; modules of one group share a state."""
    states = {part._get_fsdp_state() for part in model.modules() if hasattr(part, "_get_fsdp_state")}
    return [group for state in states for group in state._fsdp_param_groups]


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
