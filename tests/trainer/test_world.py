"""Ranks on the loopback of a real node, with the nodes' own torch, sum correctly and name missing ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from trainer import world
from trainer.world import Member

REPO = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
# Simulated GPUs are announced in the same way as real ones.
VARIABLES = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL", "CUDA_VISIBLE_DEVICES": "0,1"}


def sh(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script], env=os.environ | VARIABLES, cwd=REPO, capture_output=True, text=True, timeout=240
    )


def gate(ranks: range | tuple[int, ...], world: int, job: int, timeout_s: int = 60) -> dict[int, list[dict]]:
    """Return the reports of each rank; the hosts are made-up names, n-<rank>, and n-0 serves the store."""
    start = " ".join(
        f"SLURM_PROCID={r} SLURMD_NODENAME=n-{r} SLURM_NTASKS={world} SLURM_JOB_ID={job} "
        f"{PYTHON} -m trainer.gate n-0 127.0.0.1 {timeout_s} &"
        for r in ranks
    )
    reports: dict[int, list[dict]] = {}
    for line in sh(f"{start} wait").stdout.splitlines():
        entry = json.loads(line.removeprefix("muster-gate "))
        reports.setdefault(entry["rank"], []).append(entry)
    return reports


def test_four_ranks_sum_correctly_on_cpu_even_if_gpus_are_announced() -> None:
    reports = gate(range(4), 4, job=1)
    assert [reports[r][-1]["stage"] for r in range(4)] == ["passed"] * 4
    assert {reports[r][-1]["sum"] for r in range(4)} == {10.0}
    assert {entry["device"] for r in range(4) for entry in reports[r] if entry["stage"] == "joined"} == {"cpu"}


def test_a_single_rank_is_a_world() -> None:
    assert gate((0,), 1, job=2)[0][-1]["sum"] == 1.0


def test_a_rank_that_does_not_join_is_named() -> None:
    reports = gate((0, 1), 3, job=3, timeout_s=8)
    assert reports[0][-1]["stage"] == "failed"
    assert reports[0][-1]["error"] == "did not join within 8 s: rank 2"


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
    assert world.name_missing_ranks([a], 4, per_host=2) == "rank 1 on n-0, rank 2, rank 3"


def test_the_smoke_job_prints_its_tables() -> None:
    done = sh(
        f"{PYTHON} -m torch.distributed.run --nnodes=1 --nproc-per-node=4 --master-addr=127.0.0.1 --master-port=29600 "
        "-m trainer.smoke",
    )
    assert done.returncode == 0, done.stderr
    assert "all-reduce of rank + 1 over 4 ranks: 10 (correct)" in done.stdout
    assert done.stdout.rstrip().endswith("smoke: passed")
    assert "\n64 MB " in done.stdout
