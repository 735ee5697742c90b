"""Options of the bring-up benchmark, and the cluster it describes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bringup import Cluster, arguments
from infra.targets.registry import load_spec as load


def test_sizes_are_sorted_and_each_counts_once():
    options = arguments(["--sizes", "32,2,8,2", "--repeat", "3", "--json", "out.json", "--cold"])
    assert (options.sizes, options.repeat, options.json, options.cold) == ([2, 8, 32], 3, Path("out.json"), True)


def test_what_is_measured_without_options():
    options = arguments([])
    assert (options.sizes, options.repeat, options.json, options.cold) == ([2, 8, 32], 1, None, False)


@pytest.mark.parametrize(
    ("option", "value"), [("--sizes", "2,x"), ("--sizes", "0"), ("--sizes", ""), ("--repeat", "0"), ("--repeat", "-1")]
)
def test_a_number_that_is_none_is_refused(option: str, value: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        arguments([option, value])
    assert "is not a whole number from 1 on" in capsys.readouterr().err


@pytest.mark.parametrize(("nodes", "memory_mb"), [(2, 2048), (32, 512)])
def test_the_cluster_is_a_valid_one_that_fits(nodes: int, memory_mb: int, tmp_path: Path):
    spec = load(Cluster("bench", nodes, tmp_path).spec())
    assert (spec.groups["gpu"].count, spec.groups["gpu"].size.memory_mb) == (nodes, memory_mb)
