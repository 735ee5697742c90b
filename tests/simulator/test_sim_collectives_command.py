"""The command `python -m simulator collectives`."""

from __future__ import annotations

import pytest

from simulator.__main__ import main
from simulator.collectives import Group, collective_time_s
from simulator.machines.instances import system

P5 = ["collectives", "--instance", "p5.48xlarge", "--nodes"]


def run_collectives(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[int, tuple[float, float, str]]:
    """Run the command and return the time in us, the bus bandwidth in GB/s and the algorithm of each size."""
    assert main(arguments) == 0
    by_size = {}
    for line in capsys.readouterr().out.splitlines()[2:]:
        size, time_us, bus, algorithm = line.split(maxsplit=3)
        by_size[int(size)] = float(time_us), float(bus), algorithm
    return by_size


def test_rows_match_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    by_size = run_collectives([*P5, "4"], capsys)
    machines = system("p5.48xlarge", 4)
    for size, (time_us, bus, _) in by_size.items():
        assert time_us == pytest.approx(1e6 * collective_time_s("all_reduce", size, Group(32, 8), machines), abs=0.1)
        assert bus == pytest.approx(2 * 31 / 32 * size / time_us / 1e3, rel=0.001)
    assert {algorithm.split()[0] for _, _, algorithm in by_size.values()} <= {"ring", "tree", "nvls_tree"}


def test_groups_that_share_network_cards_are_slower(capsys: pytest.CaptureFixture[str]) -> None:
    two_per_node = [*P5, "4", "--per-node", "2", "--op", "all_gather"]
    alone, shared = run_collectives(two_per_node, capsys), run_collectives([*two_per_node, "--sharing", "4"], capsys)
    assert all(shared[size][0] >= alone[size][0] for size in alone)
    eight = run_collectives([*P5, "4", "--op", "all_gather"], capsys)
    # Four groups with two GPUs of each node send at once, so each has a quarter of the node's network cards.
    assert shared[2**34][1] == pytest.approx(eight[2**34][1] / 4, rel=0.1)


def test_send_uses_the_links_of_one_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    near, far = run_collectives([*P5, "1", "--op", "send"], capsys), run_collectives([*P5, "2", "--op", "send"], capsys)
    # One GPU has an eighth of the node's 400 GB/s between nodes, and 450 GB/s inside the node.
    assert far[2**34][1] < 50 < near[2**34][1] < 450


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--instance", "p5.48xlrge", "--nodes", "2"], "instance: 'p5.48xlrge' is not in the catalog"),
        (["--instance", "p5.48xlarge", "--nodes", "0"], "nodes: 0 is outside of 1 to 1024"),
        (["--instance", "p5.48xlarge", "--nodes", "2,4"], "--nodes: 2, 4; allowed: one number"),
        (["--instance", "p5.48xlarge", "--nodes", "1", "--per-node", "1"], "allowed: two ranks or more"),
        (["--instance", "p5.48xlarge", "--nodes", "2", "--per-node", "9"], "--per-node: 9; allowed: 1 to 8"),
        (
            ["--instance", "p5.48xlarge", "--nodes", "2", "--sharing", "2"],
            "--sharing: 2; allowed: 1: a group with 8 of",
        ),
        (
            ["--instance", "p5.48xlarge", "--nodes", "2", "--sharing", "0"],
            "; leave it out, or use groups with fewer",
        ),
        ([*P5[1:], "2", "--per-node", "2", "--sharing", "5"], "--sharing: 5; allowed: 1 to 4: a group with 2 of the 8"),
        (
            ["--instance", "p5.48xlarge", "--nodes", "-4"],
            "--nodes: '-4'; allowed: one whole number from 1 to 1024; write",
        ),
        (["--instance", "p5.48xlarge", "--nodes", "5000"], "--nodes: 5000 is outside of 1 to 1024; allowed: one whole"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collectives", *arguments]) == 2
    assert message in capsys.readouterr().err
