"""Ranks on the loopback of one real node, with the nodes' own torch: right sums, and the missing named."""

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
    """What each rank said; the hosts are names only, n-<rank>, and n-0 holds the store."""
    start = " ".join(
        f"SLURM_PROCID={r} SLURMD_NODENAME=n-{r} SLURM_NTASKS={world} SLURM_JOB_ID={job} "
        f"{PYTHON} -m trainer.gate n-0 127.0.0.1 {timeout_s} &"
        for r in ranks
    )
    said: dict[int, list[dict]] = {}
    for line in sh(f"{start} wait").stdout.splitlines():
        entry = json.loads(line.removeprefix("muster-gate "))
        said.setdefault(entry["rank"], []).append(entry)
    return said


def test_four_ranks_sum_right_on_cpu_although_gpus_are_announced() -> None:
    said = gate(range(4), 4, job=1)
    assert [said[r][-1]["stage"] for r in range(4)] == ["passed"] * 4
    assert {said[r][-1]["sum"] for r in range(4)} == {10.0}
    assert {entry["device"] for r in range(4) for entry in said[r] if entry["stage"] == "joined"} == {"cpu"}


def test_one_rank_alone_is_a_world() -> None:
    assert gate((0,), 1, job=2)[0][-1]["sum"] == 1.0


def test_a_rank_that_does_not_come_is_named() -> None:
    said = gate((0, 1), 3, job=3, timeout_s=8)
    assert said[0][-1]["stage"] == "failed"
    assert said[0][-1]["error"] == "did not join within 8 s: rank 2"


def test_ranks_that_disagree_on_the_world_are_refused() -> None:
    a = Member(0, 2, 0, "n-0", "127.0.0.1", "cpu")
    b = replace(a, rank=1, host="n-1")
    assert world.disagreement([a, b]) == ""
    assert world.disagreement([a, replace(b, world=3)]) == (
        "ranks disagree on the size of the world: rank 0 on n-0 sees 2, rank 1 on n-1 sees 3"
    )
    assert world.disagreement([replace(a, device="cuda:0"), b]) == (
        "some ranks have a GPU and these have none: rank 1 on n-1"
    )
    assert world.missing_ranks([a], 4, per_host=2) == "rank 1 on n-0, rank 2, rank 3"


def test_the_smoke_job_prints_its_tables() -> None:
    done = sh(
        f"{PYTHON} -m torch.distributed.run --nnodes=1 --nproc-per-node=4 --master-addr=127.0.0.1 --master-port=29600 "
        "-m trainer.smoke",
    )
    assert done.returncode == 0, done.stderr
    assert "all-reduce of rank + 1 over 4 ranks: 10, as it should be" in done.stdout
    assert done.stdout.rstrip().endswith("smoke: passed")
    assert "\n64 MB " in done.stdout
