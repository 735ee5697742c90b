"""The memory that `auto` and the simulator predict for stored formats, against what the trainer's ranks allocate."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from simulator.job import layout_from_config
from simulator.memory.state import StageParameters, stage_parameters, state_bytes
from simulator.models import build_transformer
from simulator.parameters import count_parameters
from tests.trainer.curves import make_step
from tests.trainer.ranks import RANKS, on_ranks
from tests.trainer.test_stored_formats import FORMATS, count_bytes, make_config, run_steps
from trainer.auto import measure
from trainer.auto.memory import estimate_memory
from trainer.config.layout import resolve_layout
from trainer.config.load import from_dict
from trainer.config.schema import Config
from trainer.parallel.gradients import to_local

HERE = "tests.trainer.test_predicted_state"
# Strategies that store gradients whole, by unit, and for the sum over replicas; each sums two micro-batches.
STRATEGIES = ("single", "ddp", "fsdp zero=1", "fsdp zero=2", "fsdp zero=3", "hsdp shard=2", "fsdp accumulate=defer")
MICRO_BATCHES = 2


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


@pytest.mark.nightly_cases(
    "fsdp zero=2: bf16 weights",
    "fsdp zero=2: reduced in bf16",
    "fsdp zero=1: reduced in bf16",
    "fsdp zero=1: bf16 gradients",
    "hsdp shard=2: reduced in bf16",
)
@pytest.mark.parametrize(("strategy", "formats"), list_cases())
def test_predictions_are_what_a_rank_allocates(strategy: str, formats: tuple[str, ...]) -> None:
    config = make_config(strategy, formats)
    settings, ranks = from_dict(config), 1 if strategy == "single" else RANKS
    counted = on_ranks(f"{HERE}:count_allocated", ranks=ranks, config=config)
    check_estimate(settings, counted)
    # The simulator has no setting for gradients that are summed before they are scattered.
    if "accumulate" not in strategy:
        check_simulated(settings, counted)


def check_estimate(settings: Config, counted: list[dict[str, int]]) -> None:
    """Check what `auto` predicts against what was counted on each rank."""
    layout = resolve_layout(settings.parallel, len(counted), len(counted))
    sizes = measure.measure_sizes(settings, {"inputs": torch.zeros(2, 64, dtype=torch.int64)}, "cpu")
    need = estimate_memory(sizes, settings.parallel, layout, settings.precision, 1, MICRO_BATCHES, settings.optimizer)
    gradients = need.gradients - count_bucket_copies(settings, sizes.trainable)
    for each in counted:
        # Rows that the ranks do not divide make a shard a little larger.
        assert each["weights"] == pytest.approx(need.weights, rel=0.02)
        assert each["states"] == pytest.approx(need.states, rel=0.02)
        assert each["gradients"] == pytest.approx(gradients, rel=0.02)


def check_simulated(settings: Config, counted: list[dict[str, int]]) -> None:
    """Check what the simulator predicts against what was counted on each rank."""
    held, predicted = predict_state(settings, len(counted))
    is_sharded = settings.parallel.strategy in ("fsdp", "hsdp")
    # Autocast makes bf16 copies of fp32 weights, and frees them with the graph.
    copies = 0.0 if is_sharded or settings.optimizer.weights != "fp32" else 2 * held.replicated
    gradients = predicted["gradients"] - count_bucket_copies(settings, held.replicated)
    for each in counted:
        assert each["weights"] + each["gathered"] == pytest.approx(predicted["weights"] - copies, rel=0.02)
        assert each["states"] == pytest.approx(predicted["optimizer"], rel=0.02)
        assert each["gradients"] == pytest.approx(gradients, rel=0.02)


def count_bucket_copies(settings: Config, trained: float) -> float:
    """Return the bytes of the copies of ddp's buckets, which are gone when the gradients can be counted."""
    is_copied = settings.parallel.strategy == "ddp" and settings.parallel.reduce != settings.optimizer.gradients
    return 4 * trained if is_copied else 0.0


def predict_state(settings: Config, ranks: int) -> tuple[StageParameters, dict[str, float]]:
    layout = layout_from_config(settings, ranks, ranks, settings.batch.size // ranks // MICRO_BATCHES)
    counts = count_parameters(build_transformer(settings.model, settings.data.seq_len))
    held = stage_parameters(counts, layout, first=True, last=True)
    return held, state_bytes(held, layout)


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
    return [state._fsdp_param_group for state in states if state._fsdp_param_group is not None]
