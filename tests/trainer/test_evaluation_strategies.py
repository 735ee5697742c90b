"""Every strategy evaluates like a single rank, and training continues as if there had been no evaluation."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest

from tests.trainer.curves import config_of
from tests.trainer.ranks import on_ranks
from tests.trainer.strategies import settings

LLAMA = (
    "model.dim=32",
    "model.ffn=48",
    "model.heads=4",
    "model.kv_heads=4",
    "model.vocab_size=64",
    "model.seq_len=16",
    "batch.size=16",
    "data.samples=110",
    "evaluation.share=0.1",
)
SHALLOW = (*LLAMA, "model.layers=2")
# The balance loss is that of a rank's own tokens, so parts of sequences would have another one.
MIXTURE = (*SHALLOW, "model.family=mixtral", "model.experts=4", "model.top_k=2", "model.balance=bias")
NIGHTLY = pytest.mark.nightly
STRATEGIES = [
    pytest.param("ddp", SHALLOW, id="ddp"),
    pytest.param("fsdp zero=1", SHALLOW, id="fsdp, zero 1", marks=NIGHTLY),
    pytest.param("fsdp zero=3", SHALLOW, id="fsdp, zero 3"),
    pytest.param("hsdp shard=2", SHALLOW, id="hsdp", marks=NIGHTLY),
    pytest.param("single tensor=4", SHALLOW, id="tensor", marks=NIGHTLY),
    pytest.param("fsdp tensor=2", SHALLOW, id="tensor with fsdp", marks=NIGHTLY),
    pytest.param("single pipeline=4", LLAMA, id="pipeline, 1f1b", marks=NIGHTLY),
    pytest.param("ddp pipeline=2 schedule=interleaved", LLAMA, id="pipeline, interleaved, with ddp"),
    pytest.param("fsdp pipeline=2", LLAMA, id="pipeline with fsdp", marks=NIGHTLY),
    pytest.param("single tensor=2 pipeline=2", SHALLOW, id="pipeline with tensor", marks=NIGHTLY),
    pytest.param("ddp context=2", SHALLOW, id="context with ddp"),
    pytest.param("fsdp context=2", SHALLOW, id="context with fsdp", marks=NIGHTLY),
    pytest.param("fsdp expert=2", MIXTURE, id="expert with fsdp"),
    pytest.param("ddp expert=4", MIXTURE, id="expert with ddp", marks=NIGHTLY),
    pytest.param("fsdp context=2 expert=2", MIXTURE, id="expert with context", marks=NIGHTLY),
]
EVALUATE = "tests.trainer.evaluation_rank:evaluate"
AND_TRAIN = "tests.trainer.evaluation_rank:evaluate_then_train"
# The sums over ranks and the gradients of a step are rounded differently.
TOLERANCE = 1e-5


@pytest.mark.parametrize(("strategy", "base"), STRATEGIES)
def test_strategy_evaluates_like_one_rank(strategy: str, base: tuple[str, ...]) -> None:
    expected = evaluate_alone(base)
    figures, samples = expected["results"][0]
    assert samples == 11
    assert 0 < figures["accuracy"] < 1
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))
    for answer in on_ranks(EVALUATE, config=config_of("tiny-llama", [*base, *settings(strategy)])):
        ((own_figures, own_samples),) = answer["results"]
        assert own_samples == samples
        assert own_figures == pytest.approx(figures, rel=TOLERANCE)
        assert answer["loss"] == pytest.approx(expected["loss"], abs=TOLERANCE)
        assert answer["modes"] == {True}


def test_running_statistics_are_those_of_the_first_rank() -> None:
    """A batch norm has other statistics on every rank, and checkpoints contain those of the first."""
    config = config_of("tiny-resnet", [*LLAMA[6:], "parallel.strategy=ddp"])
    answers = on_ranks(EVALUATE, config=config)
    assert all(answer["results"] == answers[0]["results"] for answer in answers)


def test_dropout_is_off() -> None:
    gpt2 = ["model.dropout=0.5", "model.dim=32", "model.layers=2", *LLAMA[4:], "parallel.strategy=single"]
    answer = on_ranks(EVALUATE, ranks=1, config=config_of("tiny-gpt2", gpt2), evaluations=2)[0]
    assert answer["results"][0] == answer["results"][1]


@pytest.mark.parametrize(
    ("ranks", "strategy", "precision"),
    [(1, "single", "bf16"), (4, "fsdp", "bf16"), (4, "fsdp", "fp16")],
)
def test_the_precision_is_that_of_training(ranks: int, strategy: str, precision: str) -> None:
    """A training step over the same samples, with the same weights, has the same loss; one in fp32 has another."""
    losses = on_ranks(AND_TRAIN, ranks=ranks, config=held_out_batch(precision, strategy))[0]
    exact = on_ranks(AND_TRAIN, ranks=1, config=held_out_batch("fp32", "single"))[0]
    # Rounding errors of fp16 almost cancel out in the mean of a batch, so the bound is that of sums in fp32.
    assert losses["evaluated"] == pytest.approx(losses["trained"], abs=1e-6)
    assert 1e-6 < abs(losses["evaluated"] - exact["evaluated"]) < 0.02


def held_out_batch(precision: str, strategy: str) -> dict[str, Any]:
    """Return a configuration whose evaluation set is as large as a batch."""
    base = [*SHALLOW, "data.samples=160", f"precision={precision}", f"parallel.strategy={strategy}"]
    return config_of("tiny-llama", base)


@cache
def evaluate_alone(base: tuple[str, ...]) -> dict[str, Any]:
    config = config_of("tiny-llama", [*base, "parallel.strategy=single"])
    answer: dict[str, Any] = on_ranks(EVALUATE, ranks=1, config=config)[0]
    return answer
