"""Ranks on the loopback of a real node, with the nodes' own torch, sum correctly and name missing ranks."""

from __future__ import annotations

import json
import re
import socket
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.trainer.launch import Launched, alone, assert_finished, forked
from trainer import world
from trainer.gate import MIN_TIMEOUT_S, PORTS, probe, remaining
from trainer.world import Member

# Simulated GPUs are announced in the same way as real ones.
VARIABLES = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL", "CUDA_VISIBLE_DEVICES": "0,1"}


def start_gate(
    folder: Path, rank: int, world: int, *options: str, job: int, timeout_s: int, master: str = "127.0.0.1"
) -> AbstractContextManager[Launched]:
    """Start a rank; the hosts are made-up names, n-<rank>, and n-0 serves the store."""
    return alone(
        ["n-0", master, str(timeout_s), *options],
        folder / f"rank-{rank}",
        program="trainer.gate",
        SLURM_PROCID=str(rank),
        SLURMD_NODENAME=f"n-{rank}",
        SLURM_NTASKS=str(world),
        SLURM_JOB_ID=str(job),
        **VARIABLES,
    )


def gate(
    folder: Path, ranks: range, world: int, *options: str, job: int, timeout_s: int = 240
) -> dict[int, list[dict]]:
    """Return the reports of each rank."""
    reports: dict[int, list[dict]] = {}
    with ExitStack() as stack:
        started = [
            stack.enter_context(start_gate(folder, rank, world, *options, job=job, timeout_s=timeout_s))
            for rank in ranks
        ]
        for run in started:
            run.wait()
            for line in run.output.splitlines():
                if line.startswith("muster-gate "):
                    entry = json.loads(line.removeprefix("muster-gate "))
                    reports.setdefault(entry["rank"], []).append(entry)
    return reports


def test_four_ranks_sum_correctly_on_cpu_even_if_gpus_are_announced(tmp_path: Path) -> None:
    reports = gate(tmp_path, range(4), 4, job=1)
    assert [reports[r][-1]["stage"] for r in range(4)] == ["passed"] * 4
    assert {reports[r][-1]["sum"] for r in range(4)} == {10.0}
    assert {entry["device"] for r in range(4) for entry in reports[r] if entry["stage"] == "joined"} == {"cpu"}


def test_a_single_rank_is_a_world(tmp_path: Path) -> None:
    assert gate(tmp_path, range(1), 1, job=2)[0][-1]["sum"] == 1.0


def test_a_node_without_a_gpu_fails_before_it_joins(tmp_path: Path) -> None:
    (reports,) = gate(tmp_path, range(1), 1, "gpu", job=4).values()
    assert [entry["stage"] for entry in reports] == ["started", "imported", "compiling", "failed"]
    assert reports[-1]["error"].startswith("torch finds no GPU;")


def test_a_rank_that_does_not_join_is_named(tmp_path: Path) -> None:
    # The other one waits for rank 0: on a busy machine it could otherwise start after the time of rank 0.
    with start_gate(tmp_path, 1, 3, job=3, timeout_s=240) as other:
        other.until(lambda: '"imported"' in other.output, "import")
        reports = gate(tmp_path, range(1), 3, job=3, timeout_s=8)
    assert reports[0][-1]["stage"] == "failed"
    assert reports[0][-1]["missing"] == [2]
    waited = re.fullmatch(r"did not join within (\d+(?:\.\d)?) s: rank 2", reports[0][-1]["error"])
    assert waited, reports[0][-1]
    # The start of the rank may have used a part of the 8 s.
    assert MIN_TIMEOUT_S <= float(waited[1]) <= 8


def test_a_rank_whose_master_does_not_answer_reports_it_before_and_after_the_import(tmp_path: Path) -> None:
    # The container has only the loopback: there is no route to another address.
    with start_gate(tmp_path, 1, 2, job=5, timeout_s=8, master="192.0.2.1") as run:
        run.wait()
    reports = [json.loads(line.partition(" ")[2]) for line in run.output.splitlines() if line.startswith("muster-gate")]
    assert [(entry["stage"], entry.get("unanswered", False)) for entry in reports] == [
        ("started", False),
        ("started", True),
        ("imported", True),
        ("waiting", True),
        ("failed", False),
    ]
    assert reports[-1]["error"] == f"no answer from n-0 (192.0.2.1:{PORTS[5]})"


def test_a_port_without_a_listener_is_an_answer() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert probe("127.0.0.1", port) == "refused"
        listener.listen()
        assert probe("127.0.0.1", port) == "accepted"
    assert probe("192.0.2.1", port) == "unanswered"


@pytest.mark.parametrize(
    ("end", "now", "expected"),
    [
        (160.0, 100.0, 60.0),
        (160.0, 130.5, 29.5),
        (160.0, 155.0, MIN_TIMEOUT_S),
        (160.0, 156.0, MIN_TIMEOUT_S),
        # The compilation took longer than there was time.
        (160.0, 400.0, MIN_TIMEOUT_S),
    ],
)
def test_a_wait_gets_the_time_that_is_left_and_never_too_little(end: float, now: float, expected: float) -> None:
    assert remaining(end, now) == expected


def test_ranks_that_disagree_are_rejected() -> None:
    a = Member(0, 2, 0, "n-0", "127.0.0.1", "cpu")
    b = replace(a, rank=1, host="n-1")
    assert world.find_disagreement([a, b]) == ""
    assert world.find_disagreement([a, replace(b, world=3)]) == (
        "ranks disagree on the number of ranks: rank 0 on n-0 expects 2, rank 1 on n-1 expects 3"
    )
    assert world.find_disagreement([replace(a, device="cuda:0"), b]) == (
        "some ranks have a GPU, but these have none: rank 1 on n-1"
    )
    assert world.list_missing_ranks([a], 4, per_host=2) == [(1, "n-0"), (2, "an unknown host"), (3, "an unknown host")]


def test_the_smoke_job_prints_its_tables(tmp_path: Path) -> None:
    with forked(4, [], tmp_path, program="trainer.smoke", **VARIABLES) as run:
        assert_finished(run)
    assert "all-reduce of rank + 1 over 4 ranks: 10 (correct)" in run.output
    assert run.output.rstrip().endswith("smoke: passed")
    assert "\n64 MB " in run.output
