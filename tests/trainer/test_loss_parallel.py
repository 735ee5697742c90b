"""Loss over a split vocabulary: tensor-parallel ranks never hold the logits of each other's part."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.trainer.curves import config_of
from tests.trainer.ranks import on_ranks

# The vocabulary is not divisible by 2 or 4.
LLAMA = (
    "model.dim=32",
    "model.ffn=48",
    "model.heads=4",
    "model.kv_heads=4",
    "model.layers=2",
    "model.vocab_size=77",
    "batch.size=8",
)
STRATEGIES = {
    "tensor": "single tensor=4",
    "tensor with fsdp": "fsdp tensor=2",
    "tensor with pipeline": "single tensor=2 pipeline=2",
    "tensor with hsdp, tied": "hsdp shard=2 tensor=2",
}

DAILY = [("tensor with pipeline", 0), ("tensor with hsdp, tied", 10)]
CASES = [
    pytest.param(name, tokens, marks=() if (name, tokens) in DAILY else pytest.mark.nightly)
    for name in STRATEGIES
    for tokens in (0, 10)
]


@pytest.mark.nightly_cases("tensor with hsdp, tied-10")
@pytest.mark.parametrize(("name", "chunk_tokens"), CASES)
def test_split_logits_give_the_loss_of_whole_logits(name: str, chunk_tokens: int) -> None:
    """A micro-batch has 2 samples of 16 tokens, some of which are ignored."""
    more = ("model.tie_embeddings=true",) if "tied" in name else ()
    expected, strategy = measure_alone(more), STRATEGIES[name]
    results = measure(strategy, (*more, f"loss.chunk_tokens={chunk_tokens}"))
    for result in results:
        assert result["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert result["norm"] == pytest.approx(expected["norm"], rel=1e-4)
        assert result["sums"] == pytest.approx(expected["sums"], rel=1e-5)
    # Only the last stage of a pipeline has logits.
    part = 39 if "tensor=2" in strategy else 20
    assert max(result["columns"] for result in results) == part
    assert max(result["rows"] for result in results) == (chunk_tokens or 32)


@cache
def measure_alone(more: tuple[str, ...]) -> dict[str, Any]:
    (result,) = measure("single", (*more, "loss.chunk_tokens=0"), ranks=1)
    assert (result["rows"], result["columns"]) == (32, 77)
    return result


def measure(strategy: str, more: tuple[str, ...], ranks: int = 4) -> list[Any]:
    kind, *options = strategy.split()
    overrides = [*LLAMA, f"parallel.strategy={kind}", *(f"parallel.{option}" for option in options), *more]
    return on_ranks("tests.trainer.split_loss:measure", ranks=ranks, config=config_of("tiny-llama", overrides))
