"""communication.pattern: training with each pattern equals training with the backend's sums."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from tests.trainer import engine_rank
from tests.trainer.curves import config_of
from tests.trainer.ranks import on_ranks
from tests.trainer.strategies import FAMILIES, settings
from trainer.collectives.choice import TREE_LARGEST_BYTES, Choice, choose_pattern
from trainer.collectives.exchange import ConnectionLost
from trainer.config.errors import ConfigError
from trainer.parallel.pattern_hook import PatternHook

HERE = "tests.trainer.test_communication_pattern"
STEPS = 20
PATTERNS = ("ring", "tree", "hierarchical", "auto")


def train_with_patterns(configs: dict[str, Any], micro: int, steps: int) -> dict[str, Any]:
    """Train once with each configuration, as on nodes of two ranks."""
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    try:
        return {name: engine_rank.train(config, micro, steps) for name, config in configs.items()}
    finally:
        del os.environ["LOCAL_WORLD_SIZE"]


def train(ranks: int) -> list[dict[str, Any]]:
    row = FAMILIES["llama"]
    base = [*row.settings, *settings("ddp bucket_mb=1"), f"batch.size={ranks * row.micro}"]
    configs = {name: config_of(row.preset, [*base, f"communication.pattern={name}"]) for name in ("backend", *PATTERNS)}
    return on_ranks(f"{HERE}:train_with_patterns", ranks=ranks, configs=configs, micro=row.micro, steps=STEPS)


def test_sums_of_two_ranks_have_the_bits_of_the_backend() -> None:
    """A sum of two numbers does not depend on their order."""
    for rank in train(2):
        for pattern in PATTERNS:
            assert rank[pattern] == rank["backend"], pattern


def test_sums_of_four_ranks_differ_from_the_backend_by_rounding_only() -> None:
    results = train(4)
    for pattern in PATTERNS:
        assert len({rank[pattern]["digest"] for rank in results}) == 1, pattern
        for rank in results:
            for figure in ("losses", "norms"):
                assert rank[pattern][figure] == pytest.approx(rank["backend"][figure], rel=1e-5), (pattern, figure)


def test_auto_chooses_by_nodes_and_size() -> None:
    assert choose_pattern("auto", 1, ranks=8, ranks_per_node=4) == Choice("hierarchical", 4)
    assert choose_pattern("auto", TREE_LARGEST_BYTES, ranks=8, ranks_per_node=8) == Choice("tree")
    assert choose_pattern("auto", TREE_LARGEST_BYTES + 1, ranks=8, ranks_per_node=8) == Choice("ring")
    # Nodes of one rank, or of different sizes.
    assert choose_pattern("auto", 1 << 30, ranks=8, ranks_per_node=1) == Choice("ring")
    assert choose_pattern("auto", 1 << 30, ranks=6, ranks_per_node=4) == Choice("ring")
    assert choose_pattern("hierarchical", 1, ranks=8, ranks_per_node=2) == Choice("hierarchical", 2)
    assert choose_pattern("tree", 1 << 30, ranks=8, ranks_per_node=2) == Choice("tree")


def refuse_pattern() -> None:
    os.environ["LOCAL_WORLD_SIZE"] = "3"
    try:
        with pytest.raises(ConfigError, match="ranks_per_node is 3, but must divide the number of ranks, 2"):
            PatternHook("hierarchical", None, torch.device("cpu"))
    finally:
        del os.environ["LOCAL_WORLD_SIZE"]
    with pytest.raises(ConfigError, match=r"communication.pattern: ring, but it has only been tried on CPUs, not on c"):
        PatternHook("ring", None, torch.device("cuda"))


def test_nodes_of_different_sizes_and_gpus_are_refused() -> None:
    on_ranks(f"{HERE}:refuse_pattern", ranks=2)


class Bucket:
    def buffer(self) -> Any:
        return torch.ones(3)


def lose_a_rank() -> None:
    """Break the all-reduce of a bucket: its future is complete, and the error is raised after the backward pass."""

    def fail(*_: Any, on_end: Any, **__: Any) -> None:
        on_end(ConnectionLost("no answer from rank 1"))

    hook = PatternHook("ring", None, torch.device("cpu"))
    hook.raise_error()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.parallel.pattern_hook.all_reduce", fail)
        hook.average(None, Bucket()).wait()
    with pytest.raises(ConnectionLost, match="no answer from rank 1"):
        hook.raise_error()


def test_an_error_of_the_background_is_raised_after_the_backward_pass() -> None:
    on_ranks(f"{HERE}:lose_a_rank", ranks=2)
