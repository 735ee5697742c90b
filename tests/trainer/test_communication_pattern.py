"""communication.pattern: training with each pattern equals training with the backend's sums."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer import engine_rank
from tests.trainer.curves import config_of
from tests.trainer.ranks import RanksError, on_ranks
from tests.trainer.strategies import FAMILIES, settings
from trainer.collectives.choice import TREE_LARGEST_BYTES, Choice, choose_pattern, count_ranks_per_node
from trainer.collectives.exchange import ConnectionLost
from trainer.collectives.measure import detect_topology
from trainer.collectives.timing_table import default_folder, parse_seconds, write_table
from trainer.config.errors import ConfigError
from trainer.engines.reduction import choose_average
from trainer.parallel.pattern_hook import PatternHook

HERE = "tests.trainer.test_communication_pattern"
STEPS = 20
PATTERNS = ("ring", "tree", "hierarchical", "auto")


def train_with_patterns(configs: dict[str, Any], micro: int, steps: int, hosts: list[str]) -> dict[str, Any]:
    """Train once with each configuration, as on these hosts."""
    with pytest.MonkeyPatch.context() as patch:
        # torchrun's number is that of a rank's own node, which may differ from the others.
        patch.setenv("LOCAL_WORLD_SIZE", str(hosts.count(hosts[dist.get_rank()])))
        return {name: engine_rank.train(config, micro, steps, hosts) for name, config in configs.items()}


def train(
    hosts: list[str], patterns: Sequence[str] = PATTERNS, steps: int = STEPS, engine: str = "torch"
) -> list[dict[str, Any]]:
    row = FAMILIES["llama"]
    base = [*row.settings, *settings(f"ddp bucket_mb=1 engine={engine}"), f"batch.size={len(hosts) * row.micro}"]
    configs = {name: config_of(row.preset, [*base, f"communication.pattern={name}"]) for name in ("backend", *patterns)}
    return on_ranks(
        f"{HERE}:train_with_patterns", ranks=len(hosts), configs=configs, micro=row.micro, steps=steps, hosts=hosts
    )


def test_sums_of_two_ranks_have_the_bits_of_the_backend() -> None:
    """A sum of two numbers does not depend on their order."""
    for rank in train(["a", "a"]):
        for pattern in PATTERNS:
            assert rank[pattern] == rank["backend"], pattern


def test_both_engines_have_the_same_bits() -> None:
    ours, theirs = (train(["a", "a", "b", "b"], steps=3, engine=engine) for engine in ("muster", "torch"))
    assert ours == theirs


def test_sums_of_four_ranks_differ_from_the_backend_by_rounding_only() -> None:
    check_rounding(train(["a", "a", "b", "b"]), PATTERNS)


def train_with_table(seconds: dict[str, dict[int, float]], cache: str, **options: Any) -> dict[str, Any]:
    """Train as on these hosts, with a table in the cache that rank 0 sees."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", cache)
        topology = detect_topology(options["hosts"], None)
        if dist.get_rank() == 0:
            write_table(default_folder(), topology, parse_seconds(seconds))
        return train_with_patterns(**options)


@pytest.mark.parametrize("fastest", ["backend", "ring", "hierarchical"])
def test_auto_follows_a_table_of_measured_times(fastest: str, tmp_path: Path) -> None:
    row, hosts = FAMILIES["llama"], ["a", "a", "b", "b"]
    base = [*row.settings, *settings("ddp bucket_mb=1"), f"batch.size={len(hosts) * row.micro}"]
    names = dict.fromkeys(("auto", fastest, "tree"))
    results = on_ranks(
        f"{HERE}:train_with_table",
        seconds={method: {4096: 1.0 if method == fastest else 2.0} for method in names if method != "auto"},
        cache=str(tmp_path),
        configs={name: config_of(row.preset, [*base, f"communication.pattern={name}"]) for name in names},
        micro=row.micro,
        steps=3,
        hosts=hosts,
    )
    for rank in results:
        assert rank["auto"] == rank[fastest]
        assert rank["auto"] != rank["tree"]


def test_nodes_of_different_sizes_choose_the_same_pattern() -> None:
    patterns = ("auto", "ring")
    results = train(["a", "a", "b", "c"], patterns, steps=3)
    check_rounding(results, patterns)


def check_rounding(results: list[dict[str, Any]], patterns: Sequence[str]) -> None:
    for pattern in patterns:
        assert len({rank[pattern]["digest"] for rank in results}) == 1, pattern
        for rank in results:
            for figure in ("losses", "norms"):
                ours, theirs = ([float.fromhex(text) for text in rank[name][figure]] for name in (pattern, "backend"))
                assert ours == pytest.approx(theirs, rel=1e-5), (pattern, figure)


def test_auto_chooses_by_nodes_and_size() -> None:
    assert choose_pattern("auto", 1, ranks=8, ranks_per_node=4) == Choice("hierarchical", 4)
    assert choose_pattern("auto", TREE_LARGEST_BYTES, ranks=8, ranks_per_node=8) == Choice("tree")
    assert choose_pattern("auto", TREE_LARGEST_BYTES + 1, ranks=8, ranks_per_node=8) == Choice("ring")
    # Nodes of one rank, or of different sizes.
    assert choose_pattern("auto", 1 << 30, ranks=8, ranks_per_node=1) == Choice("ring")
    assert choose_pattern("auto", 1 << 30, ranks=6, ranks_per_node=4) == Choice("ring")
    assert choose_pattern("hierarchical", 1, ranks=8, ranks_per_node=2) == Choice("hierarchical", 2)
    assert choose_pattern("tree", 1 << 30, ranks=8, ranks_per_node=2) == Choice("tree")


def test_ranks_per_node_are_counted_from_the_hosts_of_all_ranks() -> None:
    assert count_ranks_per_node(["a", "a", "b", "b"]) == 2
    assert count_ranks_per_node(["a", "b"]) == 1
    assert count_ranks_per_node(["a"]) == 1
    with pytest.raises(ValueError, match=r"^nodes have different numbers of ranks: a has 4, b has 2$"):
        count_ranks_per_node(["a"] * 4 + ["b"] * 2)
    with pytest.raises(ValueError, match=r"^the ranks of a node are not consecutive: they are on a, b, a, b$"):
        count_ranks_per_node(["a", "b", "a", "b"])


def test_nodes_of_different_sizes_are_refused_on_all_ranks() -> None:
    message = "communication.pattern: hierarchical, but nodes have different numbers of ranks: a has 2, b has 1, c has "
    with pytest.raises(RanksError) as error:
        train(["a", "a", "b", "c"], ["hierarchical"], steps=1)
    for part in str(error.value).split("\nrank "):
        assert f"{message}1; set it to backend, auto, ring or tree" in part
    assert str(error.value).count(f"ConfigError: {message}") == 4


def test_gpus_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"communication.pattern: ring, but it has only been tried on CPUs, not on c"):
        PatternHook("ring", None, torch.device("cuda"), ["a", "a"])


class Bucket:
    def buffer(self) -> Any:
        return torch.ones(3)


def lose_a_rank() -> None:
    """Break the all-reduce of a bucket: its future is complete, and the error is raised after the backward pass."""

    def fail(*_: Any, on_end: Any, **__: Any) -> None:
        on_end(ConnectionLost("no answer from rank 1"))

    hook = PatternHook("ring", None, torch.device("cpu"), ["a", "a"])
    hook.raise_error()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.parallel.pattern_hook.all_reduce", fail)
        hook.average(None, Bucket()).wait()
    with pytest.raises(ConnectionLost, match="no answer from rank 1"):
        hook.raise_error()


def lose_a_rank_of_our_engine() -> list[str]:
    """Return the notes of the error of an average of muster's engine."""

    def fail() -> None:
        raise ConnectionLost("no answer from a neighbour")

    communication = SimpleNamespace(pattern="ring")
    recipe: Any = SimpleNamespace(
        communication=communication, formats=SimpleNamespace(reduced="fp32"), compresses=lambda _: False
    )
    mesh: Any = SimpleNamespace(device=torch.device("cpu"), hosts=["a", "a"], group=lambda _: dist.group.WORLD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.parallel.pattern_hook.all_reduce", lambda *_, **__: SimpleNamespace(wait=fail))
        average, _ = choose_average({}, recipe, mesh, [])
        with pytest.raises(ConnectionLost) as lost:
            average.start(torch.ones(3), [])()
    return lost.value.__notes__


def test_an_error_in_a_pattern_names_the_peers_of_our_engine() -> None:
    assert on_ranks(f"{HERE}:lose_a_rank_of_our_engine", ranks=2) == [
        [f"rank {rank} got no answer from rank {1 - rank} in the average of gradients"] for rank in range(2)
    ]


def test_an_error_of_the_background_is_raised_after_the_backward_pass() -> None:
    on_ranks(f"{HERE}:lose_a_rank", ranks=2)
