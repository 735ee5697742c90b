"""Dropout on several ranks: every rank draws masks of its own, the same ones again in a repeated or resumed run."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.curves import config_of, make_step
from tests.trainer.ranks import on_ranks
from tests.trainer.strategies import DECODER, settings
from tests.trainer.test_parallel_ddp import run
from trainer.config.load import from_dict

SHARE = 0.5
MODEL = (*DECODER, "batch.size=4", f"model.dropout={SHARE}", "model.tie_embeddings=false")
STRATEGIES = {
    "tensor": ("single tensor=2", 2),
    "context": ("single context=2", 2),
    "pipeline": ("single pipeline=2", 2),
    "tensor x pipeline": ("single tensor=2 pipeline=2", 4),
    "ddp x tensor": ("ddp tensor=2", 4),
    "pipeline, recomputed": ("single pipeline=2 recompute=full", 2),
}
NIGHTLY = ("pipeline", "tensor x pipeline", "ddp x tensor")
# Hidden states have three dimensions (samples, tokens, width), attention weights four (samples, heads, tokens, tokens).
DROPPED = {3, 4}
CASES = [pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ()) for name in STRATEGIES]


@pytest.mark.nightly_cases("tensor")
@pytest.mark.parametrize("strategy", CASES)
def test_ranks_layers_micro_batches_and_steps_have_masks_of_their_own(strategy: str) -> None:
    """Ranks that split a layer hold other tokens, so the same mask on both would be a pattern along the sequence."""
    first, repeated = draw(strategy), draw(strategy)
    assert first == repeated
    # A recomputed layer runs twice, with the same mask.
    runs = 2 if "recomputed" in strategy else 1
    masks = [mask for rank in first for mask in rank["masks"]]
    counts = {mask: masks.count(mask) for mask in masks}
    assert len(masks) > 2 * len(first)
    assert max(counts.values()) <= runs
    for rank in first:
        assert rank["dimensions"] == DROPPED
        assert rank["share"] == pytest.approx(SHARE, abs=0.03)


@pytest.mark.parametrize("strategy", [pytest.param("tensor", marks=pytest.mark.nightly), *CASES[1:]])
def test_a_resumed_run_draws_the_same_masks(strategy: str) -> None:
    results = on_ranks("tests.trainer.test_parallel_ddp:compare_resumed", **arguments(strategy))
    assert results == [True] * STRATEGIES[strategy][1]


def draw(strategy: str) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = on_ranks("tests.trainer.test_dropout:record_masks", **arguments(strategy))
    return results


def arguments(strategy: str) -> dict[str, Any]:
    options, ranks = STRATEGIES[strategy]
    return {"ranks": ranks, "config": config_of("tiny-gpt2", [*MODEL, *settings(options)])}


def record_masks(config: dict[str, Any]) -> dict[str, Any]:
    """Train two steps on this rank; return a digest of each mask, its dimensions, and the share of dropped values."""
    step = make_step(from_dict(config))
    with RecordedMasks() as recorded:
        run(step, 2)
    masks = recorded.masks
    dropped = torch.cat([mask.flatten() for mask in masks]).float().mean()
    digests = [sha256(mask.numpy().tobytes()).hexdigest()[:16] for mask in masks]
    return {"masks": digests, "dimensions": {mask.dim() for mask in masks}, "share": float(dropped)}


class RecordedMasks(TorchDispatchMode):
    """The masks that dropout draws, in modules and in attention; on a CPU, both call bernoulli_."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.bernoulli_.float:
            self.masks.append(result == 0)
        return result
