"""Number formats, recomputation and compilation under each strategy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainer.curves import config_of, global_batch, make_step
from tests.trainer.ranks import on_ranks
from tests.trainer.strategies import settings, train_alone
from tests.trainer.test_parallel_engines import FEW, compare
from trainer.config.load import from_dict

# Half precision products round each loss by about a hundredth.
HALF_TOLERANCE = 0.03


def at_night(*values: str) -> Any:
    """Return a case for the night: by day, other cases have each of its values."""
    return pytest.param(*values, marks=pytest.mark.nightly)


@pytest.mark.parametrize(
    ("strategy", "precision"),
    [
        ("ddp", "bf16"),
        ("fsdp", "fp16"),
        ("fsdp pipeline=2", "bf16"),
        at_night("ddp", "fp16"),
        at_night("fsdp", "bf16"),
        at_night("fsdp pipeline=2", "fp16"),
        at_night("ddp pipeline=2", "bf16"),
        at_night("ddp pipeline=2", "fp16"),
    ],
)
def test_half_precision_follows_full_precision(strategy: str, precision: str) -> None:
    expected = train_alone("tiny-llama", tuple(FEW), 2, 5)
    config = config_of("tiny-llama", [*FEW, f"precision={precision}", *settings(strategy)])
    for curves in on_ranks("tests.trainer.curves:curve", ranks=ranks_of(strategy), config=config, micro=1, steps=5):
        assert curves["loss"] == pytest.approx(expected["loss"], abs=HALF_TOLERANCE)
        assert curves["norm"] == pytest.approx(expected["norm"], rel=HALF_TOLERANCE)
        assert curves["loss"] != expected["loss"]
        assert sum(curves["skipped"]) == 0


@pytest.mark.parametrize("strategy", ["ddp", at_night("fsdp"), "hsdp shard=2", "fsdp pipeline=2"])
def test_an_overflow_on_one_rank_skips_the_update_on_all(strategy: str) -> None:
    config = config_of("tiny-llama", [*FEW, "precision=fp16", *settings(strategy)])
    overflow = f"{__name__}:overflow_on_rank_1"
    for scales, skipped, changed in on_ranks(overflow, ranks=ranks_of(strategy), config=config):
        assert scales == [2.0**17, 2.0**16, 2.0**16]
        assert skipped == [1, 0]
        assert changed == [False, True]


@pytest.mark.nightly_cases("single pipeline=2 tensor=2-selective")
@pytest.mark.parametrize(
    ("strategy", "mode"),
    [
        ("ddp", "selective"),
        ("fsdp", "full"),
        ("single pipeline=2 tensor=2", "selective"),
        at_night("ddp", "full"),
        at_night("fsdp", "selective"),
        at_night("single pipeline=2 tensor=2", "full"),
    ],
)
def test_recomputed_activations_are_the_same(strategy: str, mode: str) -> None:
    compare(tuple(FEW), f"{strategy} recompute={mode}", steps=3)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("strategy", "mode"),
    [
        ("fsdp recompute=full", "blocks"),
        # By day, test_compiled.py compiles whole models.
        at_night("ddp", "whole"),
        at_night("ddp", "blocks"),
        at_night("fsdp", "blocks"),
        at_night("single tensor=2", "blocks"),
    ],
)
def test_compiled_models_train_like_uncompiled_ones(strategy: str, mode: str) -> None:
    extra = (f"compile.mode={mode}", "compile.backend=aot_eager")
    expected = train_alone("tiny-llama", tuple(FEW), 2, 3)
    config = config_of("tiny-llama", [*FEW, *extra, *settings(strategy)])
    # Each rank compiles for itself, so two are enough.
    for curves in on_ranks("tests.trainer.curves:curve", ranks=2, config=config, micro=2, steps=3):
        assert curves["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert curves["norm"] == pytest.approx(expected["norm"], rel=1e-4)


def ranks_of(strategy: str) -> int:
    """Return the number of ranks: two for one axis, because each rank costs time."""
    return 4 if "=2" in strategy else 2


def overflow_on_rank_1(config: dict[str, Any]) -> tuple[list[float], list[float], list[bool]]:
    """Return scales, skips and changes of two steps, the first of which overflows on rank 1 only."""
    import torch
    import torch.distributed as dist

    parsed = from_dict(config)
    step = make_step(parsed)
    assert step.scale is not None
    step.scale.scale.fill_(2.0**17)
    parameters = [value for _, value in step.engine.named_parameters()]
    hook = None
    if dist.get_rank() == 1:
        hook = step.engine.modules[0].register_forward_hook(lambda _module, _inputs, outputs: outputs * torch.inf)
    scales, skipped, changed = [float(step.scale.scale)], [], []
    size = parsed.batch.size // step.engine.mesh.layout.dp_size
    for index in range(2):
        before = [local(value).clone() for value in parameters]
        batch = {key: value[:size] for key, value in global_batch(parsed, index).items()}
        result = step.run(batch, micro=1)
        scales.append(float(step.scale.scale))
        skipped.append(float(result.skipped))
        changed.append(any(not torch.equal(local(value), old) for value, old in zip(parameters, before, strict=True)))
        if hook is not None:
            hook.remove()
    return scales, skipped, changed


def local(value: Any) -> Any:
    return value.to_local().detach() if hasattr(value, "to_local") else value.detach()
