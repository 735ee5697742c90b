"""`muster fabric`: the selection of nodes and the table of results."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cluster.inventory import NodeSet
from infra.engine.stop import Stop
from infra.home import Home
from muster.commands import fabric
from muster.commands.fabric_report import (
    FabricResult,
    build_pairs_table,
    describe_links,
    explain_expectation,
    select_nodes,
)
from muster.commands.submit import FollowedJob
from slurm.control.nodes import parse_listed_by_partition
from slurm.power.reasons import may_be_replaced

SINFO = """\
gpu|gpu-1|idle|none
gpu|gpu-2|allocated|none
gpu|gpu-3|idle~|none
gpu|gpu-4|drained|health: xid: 79
cpu|cpu-1|idle|none
"""


def test_default_selects_only_nodes_that_are_up() -> None:
    selected, skipped = select_nodes(parse_listed_by_partition(SINFO), None, ())
    assert selected == {"gpu": ["gpu-1", "gpu-2"]}
    assert skipped == [
        "gpu-3 skipped: idle~",
        "gpu-4 skipped: drained (health: xid: 79)",
        "cpu skipped: cpu-1 has no other node to measure with",
    ]


def test_a_node_in_several_partitions_is_measured_once_unless_a_partition_is_named() -> None:
    rows = parse_listed_by_partition("all|gpu-1|idle|none\nall|gpu-2|idle|none\n" + SINFO)
    assert select_nodes(rows, None, ())[0] == {"gpu": ["gpu-1", "gpu-2"]}
    assert select_nodes(rows, "all", ())[0] == {"all": ["gpu-1", "gpu-2"]}


def test_named_node_is_selected_even_if_powered_down() -> None:
    assert select_nodes(parse_listed_by_partition(SINFO), "gpu", ("gpu-1", "gpu-3")) == (
        {"gpu": ["gpu-1", "gpu-3"]},
        [],
    )


@pytest.mark.parametrize(
    ("partition", "named", "message"),
    [
        ("big", (), "partition: there is no 'big'"),
        (None, ("gpu-9",), "nodes: there is no gpu-9"),
        (None, ("gpu-1", "gpu-4"), r"nodes: gpu-4 is drained \(health: xid: 79\)"),
    ],
)
def test_unusable_selection_is_rejected(partition: str | None, named: tuple[str, ...], message: str) -> None:
    with pytest.raises(Stop, match=message):
        select_nodes(parse_listed_by_partition(SINFO), partition, named)


@pytest.mark.parametrize(
    ("instance_type", "fabric", "message"),
    [
        ("p5.48xlarge", "efa", ""),
        (
            "p5en.48xlarge",
            "efa",
            "gpu: no published bandwidth for p5en.48xlarge; "
            "expected: 200 GB/s, half of the bandwidth of its 16 EFA cards",
        ),
        (
            "g6.48xlarge",
            "efa",
            "gpu: no published bandwidth for g6.48xlarge; "
            "expected: 3 GB/s, a tenth of the PCIe bandwidth of its 8 GPUs",
        ),
        (
            "g6.8xlarge",
            "efa",
            "gpu: no published bandwidth for g6.8xlarge; "
            "expected: 1.5625 GB/s, half of the bandwidth of its 1 EFA card",
        ),
        (
            "c7i.48xlarge",
            "efa",
            "gpu: no published bandwidth for c7i.48xlarge, which has no GPU; pairs are compared only with each other",
        ),
        (
            "p5.48xlarge",
            "tcp",
            "gpu: no expected bandwidth is known for this network; pairs are compared only with each other",
        ),
        ("", "tcp", "gpu: no expected bandwidth is known for this network; pairs are compared only with each other"),
    ],
)
def test_missing_published_bandwidth_is_explained(instance_type: str, fabric: Any, message: str) -> None:
    nodes = NodeSet(group="gpu", count=2, static=2, cpus=8, memory_mb=1024, fabric=fabric, instance_type=instance_type)
    assert explain_expectation("gpu", [nodes]) == message


def test_silent_login_node_is_reported_without_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> None:
        raise subprocess.TimeoutExpired("ssh", 20)

    monkeypatch.setattr(fabric, "run", silent)
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")
    with pytest.raises(Stop, match="the login node does not answer"):
        fabric._result(stack, "login", "gpu", FollowedJob("7"))


def test_table_shows_network_and_expected_bandwidth() -> None:
    pairs = [
        {"nodes": ["gpu-1", "gpu-2"], "gb_per_s": 430.0, "expected": 437.0},
        {"nodes": ["gpu-2", "gpu-3"], "gb_per_s": 8.0, "expected": None},
    ]
    networks = {"gpu-1": "efa", "gpu-2": "efa", "gpu-3": "socket"}
    below = {"gpu-3": "x" * 300}
    result = FabricResult("gpu", "efa", networks, [], pairs, below, "")
    console = Console(width=120, record=True)
    console.print(build_pairs_table(result))
    _head, _line, good, bad = console.export_text().splitlines()
    assert good.split() == ["gpu-1", "-", "gpu-2", "efa", "430.00", "437.00", "98%", "good"]
    assert bad.split() == ["gpu-2", "-", "gpu-3", "efa,", "socket", "8.00", "unknown", "gpu-3", "is", "too", "slow"]
    assert result.reasons["gpu-3"].startswith("health: fabric: xxx")
    assert len(result.reasons["gpu-3"]) == 200
    assert may_be_replaced(result.reasons["gpu-3"])


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        (437.0, "every pair of nodes is as fast as expected"),
        (None, "every pair of nodes is as fast as the others; no speed of these machines is known to compare with"),
    ],
)
def test_success_says_what_pairs_were_compared_with(
    expected: float | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [{"nodes": ["gpu-1", "gpu-2"], "gb_per_s": 430.0, "expected": expected}]
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")
    fabric._conclude(stack, [FabricResult("gpu", "efa", {}, [], pairs, {}, "")], drain=False)
    assert message in capsys.readouterr().out.replace("\n", " ")


def test_the_slowest_link_is_named() -> None:
    links = [
        {"nodes": ["gpu-1", "gpu-2"], "port": "mlx5_0:1", "rate": 400.0, "gbps": 391.0, "us": 1.8, "error": ""},
        {"nodes": ["gpu-2", "gpu-3"], "port": "mlx5_1:1", "rate": 400.0, "gbps": 388.2, "us": 1.8, "error": ""},
    ]
    result = FabricResult("gpu", "infiniband", {}, [], [], {}, "", links)
    assert describe_links(result) == "gpu: 2 links measured, slowest gpu-2 - gpu-3 at mlx5_1:1: 388.2 of 400 Gb/s"
    broken = FabricResult("gpu", "infiniband", {}, [], [], {}, "", [links[0] | {"gbps": None}])
    assert describe_links(broken) == "gpu: 1 link measured, slowest gpu-1 - gpu-2 at mlx5_0:1: no connection"
    unread = FabricResult("gpu", "infiniband", {}, [], [], {}, "", [links[0] | {"rate": 0.0}, links[1]])
    assert describe_links(unread) == describe_links(result)
    assert describe_links(FabricResult("gpu", "efa", {}, [], [], {}, "")) == ""
