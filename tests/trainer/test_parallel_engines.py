"""Every option of a strategy trains a Llama like a single rank; strategies.py has the other model families."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainer.curves import BATCHES, STEPS, config_of
from tests.trainer.ranks import on_ranks
from tests.trainer.strategies import FAMILIES, LORA, LOSS_TOLERANCE, NORM_TOLERANCE, settings, train_alone

# Small enough that the steps are quick, clipped in every step, with at least two micro-batches on each rank.
LLAMA = [
    "model.dim=32",
    "model.ffn=48",
    "model.heads=4",
    "model.kv_heads=4",
    "model.vocab_size=64",
    "batch.size=16",
    "optimizer.clip_norm=0.3",
]
SHALLOW = [*LLAMA, "model.layers=2"]
# Fewer samples, because DTensors are slow to dispatch.
FEW = [*SHALLOW, "batch.size=8"]

STRATEGIES = {
    "ddp": "ddp",
    "ddp, averaged after every micro-batch": "ddp accumulate=sync",
    "ddp, static graph, gradients outside of buckets": "ddp static_graph=true bucket_view=false bucket_mb=1",
    "fsdp, zero 1": "fsdp zero=1",
    "fsdp, zero 2": "fsdp zero=2",
    "fsdp, zero 3": "fsdp zero=3",
    "fsdp, zero 3, gradients whole until the end, two layers ahead": "fsdp zero=3 accumulate=defer prefetch=2",
    "hsdp": "hsdp shard=2",
    "hsdp, zero 2, everything reduced at once": "hsdp shard=2 zero=2 accumulate=sync prefetch=0",
    "pipeline, gpipe": "single pipeline=4 schedule=gpipe",
    "pipeline, 1f1b": "single pipeline=4 schedule=1f1b",
    "pipeline, interleaved, with ddp": "ddp pipeline=2 schedule=interleaved",
    "pipeline with ddp": "ddp pipeline=2",
    "pipeline with fsdp": "fsdp pipeline=2",
    "pipeline, zero bubble, muster": "single pipeline=4 schedule=zero_bubble engine=muster",
}
TENSOR_STRATEGIES = {
    "tensor": ("single tensor=4", 4),
    "tensor with ddp": ("ddp tensor=2", 2),
    "tensor with fsdp": ("fsdp tensor=2", 2),
    "tensor with pipeline": ("single tensor=2 pipeline=2", 4),
}


# By day, test_strategy_table.py trains with ddp, fsdp, hsdp, a pipeline, tensor parallelism and both of these together,
# and the strategies that are left here train in the other pairs. test_engine_fsdp.py shards for zero 1 and 2, and
# test_evaluation_strategies.py has an interleaved pipeline.
NIGHTLY = (
    *("ddp", "fsdp, zero 3", "hsdp", "pipeline, 1f1b", "pipeline with ddp", "pipeline with fsdp"),
    *("tensor", "tensor with ddp", "tensor with pipeline"),
    *("pipeline, interleaved, with ddp", "fsdp, zero 1", "fsdp, zero 2"),
)


def list_cases(cases: dict[str, Any]) -> list[Any]:
    """Return the parameters of a test by name; some are left to the night."""
    rows = {name: case if isinstance(case, tuple) else (case,) for name, case in cases.items()}
    return [
        pytest.param(*row, id=name, marks=pytest.mark.nightly if name in NIGHTLY else ()) for name, row in rows.items()
    ]


# Differences that grow slowly would show in the longer run.
LONG = pytest.param(20, marks=pytest.mark.nightly)


@pytest.mark.parametrize("steps", [STEPS, LONG])
@pytest.mark.parametrize("strategy", list_cases(STRATEGIES))
def test_strategy_trains_like_one_rank(strategy: str, steps: int) -> None:
    compare(tuple(LLAMA if "pipeline" in strategy else SHALLOW), strategy, steps=steps)


@pytest.mark.parametrize("steps", [BATCHES, LONG])
@pytest.mark.parametrize(("strategy", "micro"), list_cases(TENSOR_STRATEGIES))
def test_split_layers_train_like_one_rank(strategy: str, micro: int, steps: int) -> None:
    compare(tuple(FEW), strategy, micro=micro, steps=steps)


@pytest.mark.parametrize(
    "strategy",
    [
        "fsdp",
        pytest.param("ddp", marks=pytest.mark.nightly),
        pytest.param("hsdp shard=2 zero=2", marks=pytest.mark.nightly),
        "fsdp pipeline=2",
        pytest.param("fsdp tensor=2", marks=pytest.mark.nightly),
        pytest.param("single tensor=4", marks=pytest.mark.nightly),
        pytest.param("hsdp shard=1 tensor=2", marks=pytest.mark.nightly),
    ],
)
def test_lora_trains_like_one_rank(strategy: str) -> None:
    """Most weights are frozen, some groups of weights entirely; 2 ranks do not divide the rank of the changes."""
    small = [setting for setting in FEW if "clip_norm" not in setting]
    layers = "lora.layers=[attention.*, ffn.*, head]"
    compare((*small, *LORA, layers), strategy, micro=1, steps=BATCHES)


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["llama", "llama, LoRA", "mixtral", "mixtral, LoRA"])
def test_compiled_blocks_of_split_layers_train_like_one_rank(family: str) -> None:
    """Mixtures of experts are left out of the graphs, so the parts of sequences cross their borders."""
    row = FAMILIES[family]
    expected = train_alone(row.preset, row.settings, 4, BATCHES)
    compiled = ["compile.mode=blocks", "compile.backend=aot_eager"]
    config = config_of(row.preset, [*row.settings, *settings("single tensor=2"), *compiled])
    for curves in on_ranks("tests.trainer.curves:curve", ranks=2, config=config, micro=4, steps=BATCHES):
        assert curves["loss"] == pytest.approx(expected["loss"], abs=LOSS_TOLERANCE)
        assert curves["norm"] == pytest.approx(expected["norm"], rel=NORM_TOLERANCE)


@pytest.mark.nightly_cases("ddp tensor=2")
@pytest.mark.parametrize(
    "strategy", ["fsdp", pytest.param("hsdp shard=2 zero=1", marks=pytest.mark.nightly), "ddp tensor=2"]
)
def test_tied_embeddings_stay_one_weight(strategy: str) -> None:
    small = ("model.dim=32", "model.layers=2", "model.vocab_size=64", "batch.size=16", "optimizer.clip_norm=0.3")
    compare(small, strategy, preset="tiny-gpt2", steps=BATCHES)


@pytest.mark.parametrize(
    "strategy", ["fsdp", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("ddp", "hsdp shard=2"))]
)
def test_a_repeated_run_gives_the_same_bits(strategy: str) -> None:
    config = config_of("tiny-llama", [*SHALLOW, *settings(strategy)])
    first, second = (on_ranks("tests.trainer.curves:curve", config=config, micro=2, steps=3) for _ in range(2))
    assert first == second


def compare(
    base: tuple[str, ...], strategy: str, preset: str = "tiny-llama", steps: int = STEPS, micro: int = 2
) -> None:
    expected = train_alone(preset, base, micro, steps)
    config = config_of(preset, [*base, *settings(strategy)])
    for curves in on_ranks("tests.trainer.curves:curve", config=config, micro=micro, steps=steps):
        assert curves["loss"] == pytest.approx(expected["loss"], abs=LOSS_TOLERANCE)
        assert curves["norm"] == pytest.approx(expected["norm"], rel=NORM_TOLERANCE)
    if steps >= STEPS:
        first, second = expected["loss"][:BATCHES], expected["loss"][BATCHES : 2 * BATCHES]
        assert all(after < before for before, after in zip(first, second, strict=True))
    limit = [float(setting.split("=")[1]) for setting in base if "clip_norm" in setting]
    assert all(norm > limit[0] for norm in expected["norm"] if limit)
