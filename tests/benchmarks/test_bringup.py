"""The options of the bring-up benchmark and the cluster that it describes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bringup import Cluster, parse_arguments
from infra.targets.registry import load_spec


def test_sizes_are_sorted_and_deduplicated():
    options = parse_arguments(["--sizes", "32,2,8,2", "--repeat", "3", "--json", "out.json", "--cold"])
    assert (options.sizes, options.repeat, options.json, options.cold) == ([2, 8, 32], 3, Path("out.json"), True)


def test_default_options():
    options = parse_arguments([])
    assert (options.sizes, options.repeat, options.json, options.cold) == ([2, 8, 32], 1, None, False)


@pytest.mark.parametrize(
    ("option", "value"), [("--sizes", "2,x"), ("--sizes", "0"), ("--sizes", ""), ("--repeat", "0"), ("--repeat", "-1")]
)
def test_invalid_number_is_rejected(option: str, value: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        parse_arguments([option, value])
    assert "is not a whole number of at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(("nodes", "memory_mb"), [(2, 2048), (32, 512)])
def test_cluster_is_valid_and_uses_less_memory_with_more_nodes(nodes: int, memory_mb: int, tmp_path: Path):
    spec = load_spec(Cluster("bench", nodes, tmp_path).spec())
    assert (spec.groups["gpu"].count, spec.groups["gpu"].size.memory_mb) == (nodes, memory_mb)
