"""Health checks of InfiniBand and RoCE ports, with their scripts on folders like /sys."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slurm.health import rdma
from slurm.health.check import Answer, Check, Expected, HealthProblem, judge_answer
from slurm.health.registry import may_reboot, select_checks
from slurm.rdma.sysfs import COUNTERS
from tests.slurm.rdma_trees import DGX_PAIRS, make_dgx_h100

DGX = Expected(rdma={f"{device}:1": 400.0 for device in DGX_PAIRS})


def run(check: Check, sysfs: Path, expected: Expected = DGX, now: int = 0) -> list[HealthProblem]:
    assignments = f"SYSFS={sysfs}\nHISTORY={sysfs}/run/rdma-errors\nNOW={now}\n"
    done = subprocess.run(["sh", "-c", assignments + check.command(expected)], capture_output=True, text=True)
    return judge_answer(check, Answer(done.stdout, done.stderr, done.returncode), expected)


def set_counter(sysfs: Path, device: str, name: str, value: int) -> None:
    file = sysfs / "class/infiniband" / device / "ports/1/counters" / name
    file.write_text(f"{value}\n")


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({}, []),
        # A port that jobs do not use.
        ({"mlx5_1": {"state": "1: DOWN"}}, []),
        ({"mlx5_3": {"state": "1: DOWN", "phys_state": "2: Polling"}}, ["port mlx5_3:1 is DOWN (Polling)"]),
        (
            {"mlx5_3": {"state": "2: INIT"}},
            ["port mlx5_3:1 is INIT (no subnet manager has configured it)"],
        ),
        ({"mlx5_9": {"rate": "200 Gb/sec (2X NDR)"}}, ["port mlx5_9:1 runs at 200 Gb/s, not 400"]),
    ],
)
def test_ports_that_are_down_or_slow(tmp_path: Path, changes: dict[str, dict[str, str]], problems: list[str]) -> None:
    reported = run(rdma.PORTS, make_dgx_h100(tmp_path, **changes))
    assert reported == [HealthProblem("rdma", text, "node") for text in problems]


def test_a_device_that_is_gone(tmp_path: Path) -> None:
    make_dgx_h100(tmp_path)
    (tmp_path / "class/infiniband/mlx5_11").unlink()
    assert [problem.text for problem in run(rdma.PORTS, tmp_path)] == ["port mlx5_11:1 is missing"]


def test_errors_that_grow_within_an_hour_are_a_problem_until_they_are_older(tmp_path: Path) -> None:
    make_dgx_h100(tmp_path)
    assert run(rdma.ERRORS, tmp_path, now=1000) == []
    # Below the limit, and between two readings that are stored.
    set_counter(tmp_path, "mlx5_4", "symbol_error", 100)
    assert run(rdma.ERRORS, tmp_path, now=1060) == []
    set_counter(tmp_path, "mlx5_4", "symbol_error", 130)
    assert run(rdma.ERRORS, tmp_path, now=1400) == [
        HealthProblem(
            "rdma-errors", "symbol_error of port mlx5_4:1 grew by 130 within an hour, 120 are too many", "node"
        )
    ]
    assert run(rdma.ERRORS, tmp_path, now=1400 + rdma.WINDOW_S + 1) == []


def test_a_link_that_flaps(tmp_path: Path) -> None:
    make_dgx_h100(tmp_path, mlx5_0={"counters/link_downed": "7"})
    assert run(rdma.ERRORS, tmp_path, now=1000) == []
    set_counter(tmp_path, "mlx5_0", "link_downed", 8)
    assert run(rdma.ERRORS, tmp_path, now=1300) == []
    set_counter(tmp_path, "mlx5_0", "link_downed", 9)
    reported = run(rdma.ERRORS, tmp_path, now=1360)
    assert [problem.text for problem in reported] == ["the link of port mlx5_0:1 went down 2 times within an hour"]


def test_a_counter_that_somebody_has_reset_did_not_grow(tmp_path: Path) -> None:
    make_dgx_h100(tmp_path, mlx5_0={"counters/symbol_error": "5000"})
    assert run(rdma.ERRORS, tmp_path, now=1000) == []
    set_counter(tmp_path, "mlx5_0", "symbol_error", 3)
    assert run(rdma.ERRORS, tmp_path, now=1400) == []


def test_packets_that_are_discarded_in_large_numbers_are_a_problem(tmp_path: Path) -> None:
    make_dgx_h100(tmp_path)
    assert run(rdma.ERRORS, tmp_path, now=1000) == []
    set_counter(tmp_path, "mlx5_4", "port_xmit_discards", 20_000)
    assert [problem.text for problem in run(rdma.ERRORS, tmp_path, now=1400)] == [
        "port_xmit_discards of port mlx5_4:1 grew by 20000 within an hour, 10000 are too many"
    ]


def test_every_limit_can_be_reached_before_its_counter_stops() -> None:
    assert rdma.LIMITS.keys() == COUNTERS.keys()
    assert all(limit < COUNTERS[counter] for counter, limit in rdma.LIMITS.items())


def test_a_counter_that_reached_its_maximum_long_ago_is_no_problem(tmp_path: Path) -> None:
    make_dgx_h100(tmp_path, mlx5_0={"counters/link_downed": "255"})
    for now in (1000, 1300):
        assert run(rdma.ERRORS, tmp_path, now=now) == []


@pytest.mark.parametrize("line", ["1o00\trdma\tmlx5_0", "garbage", "-\t"])
def test_a_damaged_history_is_repaired(tmp_path: Path, line: str) -> None:
    make_dgx_h100(tmp_path)
    history = tmp_path / "run/rdma-errors"
    history.parent.mkdir()
    history.write_text(f"{line}\n")
    assert run(rdma.ERRORS, tmp_path, now=1000) == []
    assert line not in history.read_text()


def test_a_reboot_is_no_remedy_for_a_port() -> None:
    assert not may_reboot("health: rdma: port mlx5_3:1 is DOWN (Polling)")


def test_the_history_does_not_grow_beyond_the_window(tmp_path: Path) -> None:
    make_dgx_h100(tmp_path)
    for now in range(0, 3 * rdma.WINDOW_S, 290):
        assert run(rdma.ERRORS, tmp_path, now=now) == []
    times = {int(line.split("\t")[0]) for line in (tmp_path / "run/rdma-errors").read_text().splitlines()}
    assert max(times) - min(times) <= rdma.WINDOW_S
    assert len(times) <= rdma.WINDOW_S // 300


def test_errors_of_ports_that_jobs_do_not_use_do_not_count(tmp_path: Path) -> None:
    make_dgx_h100(tmp_path, mlx5_1={"counters/link_downed": "0"})
    run(rdma.ERRORS, tmp_path, now=1000)
    set_counter(tmp_path, "mlx5_1", "link_downed", 20)
    assert run(rdma.ERRORS, tmp_path, now=1400) == []


def test_nodes_without_such_ports_do_not_run_the_checks() -> None:
    names = {check.name for check in select_checks(Expected(), "periodic")}
    assert not {"rdma", "rdma-errors"} & names
    assert {"rdma", "rdma-errors"} <= {check.name for check in select_checks(DGX, "periodic")}
