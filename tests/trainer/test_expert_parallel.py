"""Expert parallelism trains like a single rank, resumes exactly, and its checkpoints load under any other layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.curves import config_of
from tests.trainer.ranks import on_ranks
from tests.trainer.strategies import LOSS_TOLERANCE, NORM_TOLERANCE, settings

# Small enough that the steps are quick; every expert gets tokens from every rank.
MODEL = ["model.dim=32", "model.ffn=16", "model.vocab_size=64", "batch.size=16", "optimizer.clip_norm=0.3"]
BIAS = ["model.balance=bias", "model.balance_rate=0.01"]
HERE = "tests.trainer.resumed_rank"
STRATEGIES = {
    "ddp, experts whole": ("ddp", 2),
    "fsdp, experts sharded": ("fsdp", 2),
    "ddp": ("ddp expert=2", 2),
    "fsdp": ("fsdp expert=2", 2),
    "fsdp, zero 1": ("fsdp zero=1 expert=2", 2),
    "two groups, ddp": ("ddp expert=2", 4),
    "two groups, fsdp": ("fsdp expert=2", 4),
    "one group over both axes, hsdp": ("hsdp shard=2 expert=4", 4),
    "a group within a shard group, hsdp": ("hsdp shard=2 expert=2", 4),
    "recomputed": ("fsdp expert=2 recompute=full", 2),
    "selectively recomputed": ("ddp expert=2 recompute=selective", 2),
    "pipeline, ddp": ("ddp pipeline=2 expert=2", 4),
    "pipeline, fsdp": ("fsdp pipeline=2 expert=2", 4),
}
DAILY = ("two groups, fsdp",)
CASES = [
    pytest.param(strategy, ranks, steps, id=f"{name}, {steps} steps", marks=marks)
    for name, (strategy, ranks) in STRATEGIES.items()
    for steps, marks in ((3, () if name in DAILY else pytest.mark.nightly), (20, pytest.mark.nightly))
]


@pytest.mark.parametrize(("strategy", "ranks", "steps"), CASES)
def test_spread_experts_train_like_one_rank(strategy: str, ranks: int, steps: int) -> None:
    compare(strategy, ranks, steps, [])


@pytest.mark.parametrize(
    ("strategy", "override"),
    [
        pytest.param("fsdp", "model.experts=6", id="ranks"),
        pytest.param("fsdp expert=2", "model.ffn=17", id="groups", marks=pytest.mark.nightly),
    ],
)
def test_experts_that_cannot_be_divided_evenly_train_like_one_rank(strategy: str, override: str) -> None:
    """Four ranks shard the rows of six experts; two groups cannot share 17 rows and hold copies."""
    compare(strategy, 4, 2, [override])


@pytest.mark.parametrize("strategy", ["ddp expert=2", pytest.param("fsdp expert=4", marks=pytest.mark.nightly)])
def test_biases_follow_the_loads_of_all_ranks(strategy: str) -> None:
    compare(strategy, 4, 4, BIAS)


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["ddp context=2 expert=4", "fsdp context=2 expert=2"])
def test_parts_of_sequences_reach_all_experts(strategy: str) -> None:
    """The balancing loss would be another one: it balances the tokens of a rank, which are then parts of sequences."""
    compare(strategy, 4, 20, BIAS)


@pytest.mark.nightly
@pytest.mark.parametrize("strategy", ["ddp expert=8", "fsdp expert=4", "hsdp shard=4 expert=8", "fsdp"])
@pytest.mark.parametrize("family", [[], ["model.family=qwen3_moe", "model.head_dim=12"]], ids=["mixtral", "qwen3_moe"])
def test_eight_ranks_train_like_one_rank(strategy: str, family: list[str]) -> None:
    compare(strategy, 8, 20, family, micro=1)


@pytest.mark.parametrize(
    "others",
    [
        [("ddp expert=2", 4)],
        pytest.param([("single", 1), ("fsdp expert=4", 4), ("fsdp", 2)], marks=pytest.mark.nightly),
    ],
    ids=["daily", "nightly"],
)
def test_a_resumed_run_is_exact_and_other_layouts_continue_it(others: list[tuple[str, int]], tmp_path: Path) -> None:
    """The same layout continues with the same bits; all others load the same weights."""
    written = on_ranks(
        f"{HERE}:train_and_save", ranks=2, config=make_config("fsdp expert=2", tmp_path), steps=3, more=2
    )
    same, *_ = load("fsdp expert=2", 2, tmp_path)
    assert same["losses"] == written[0]
    for strategy, ranks in others:
        results = load(strategy, ranks, tmp_path)
        for name, weight in same["weights"].items():
            assert (results[0]["weights"][name] == weight).all(), (strategy, name)
        for result in results:
            assert result["losses"] == pytest.approx(written[0], abs=LOSS_TOLERANCE), strategy
    assert "layers.1.ffn.router.balance_bias" in same["weights"]
    assert same["weights"]["layers.1.ffn.experts.gate.weight"].shape == (8, 16, 32)


def load(strategy: str, ranks: int, folder: Path) -> list[dict[str, Any]]:
    return on_ranks(f"{HERE}:load_and_train", ranks=ranks, config=make_config(strategy, folder), more=2)


def make_config(strategy: str, folder: Path) -> dict[str, Any]:
    return config_of("tiny-moe", [*MODEL, *BIAS, *settings(strategy), f"run.folder={folder}"])


def compare(strategy: str, ranks: int, steps: int, overrides: list[str], micro: int = 2) -> None:
    """Micro-batches are the same on any number of ranks, and so is the balancing loss, which is computed for each."""
    expected, *_ = run("single", 1, steps, overrides, micro)
    for curves in run(strategy, ranks, steps, overrides, micro):
        assert curves["loss"] == pytest.approx(expected["loss"], abs=LOSS_TOLERANCE)
        assert curves["norm"] == pytest.approx(expected["norm"], rel=NORM_TOLERANCE)
    assert all(norm > 0.3 for norm in expected["norm"])  # clipped in every step


def run(strategy: str, ranks: int, steps: int, overrides: list[str], micro: int) -> list[dict[str, Any]]:
    config = config_of("tiny-moe", [*MODEL, *overrides, *settings(strategy)])
    return on_ranks("tests.trainer.curves:curve", ranks=ranks, config=config, micro=micro, steps=steps)
