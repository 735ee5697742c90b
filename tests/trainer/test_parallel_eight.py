"""Three axes at once on eight ranks: a replicated, sharded and split model trains like a single rank."""

from __future__ import annotations

import pytest

from tests.trainer.curves import config_of
from tests.trainer.ranks import on_ranks
from tests.trainer.strategies import LOSS_TOLERANCE, NORM_TOLERANCE, settings
from tests.trainer.test_parallel_engines import FEW

RANKS, STEPS, MICRO = 8, 2, 1
STRATEGIES = {
    "hsdp with tensor": "hsdp shard=2 tensor=2",
    "hsdp with pipeline": "hsdp shard=2 pipeline=2",
    "hsdp, zero 1, with an interleaved pipeline": "hsdp shard=2 zero=1 pipeline=2 schedule=interleaved",
    "fsdp with tensor and pipeline": "fsdp tensor=2 pipeline=2",
}
MODEL = [*FEW, "model.layers=4", "model.dim=16", "model.ffn=32", "optimizer.clip_norm=0.1"]


# By day, test_parallel_engines.py compares each pair of these axes on four ranks.
@pytest.mark.nightly
@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_three_axes_train_like_one_rank(strategy: str) -> None:
    expected, *_ = curves("single", 1)
    for curve in curves(strategy, RANKS):
        assert curve["loss"] == pytest.approx(expected["loss"], abs=LOSS_TOLERANCE)
        assert curve["norm"] == pytest.approx(expected["norm"], rel=NORM_TOLERANCE)
    assert all(norm > 0.1 for norm in expected["norm"])  # clipped in every step


def curves(strategy: str, ranks: int) -> list[dict[str, list[float]]]:
    config = config_of("tiny-llama", [*MODEL, *settings(strategy)])
    return on_ranks("tests.trainer.curves:curve", ranks=ranks, config=config, micro=MICRO, steps=STEPS)
