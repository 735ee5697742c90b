"""Ranks on the loopback of one real node, with the nodes' own torch: right sums, and the missing named."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
KEY = sha256((REPO / "trainer" / "requirements.lock").read_bytes()).hexdigest()[:16]
PYTHON = f"/shared/env/{KEY}/bin/python"

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def node() -> Iterator[str]:
    name = f"muster-test-world-{uuid.uuid4().hex[:8]}"
    run = ["docker", "run", "-d", "--rm", "--network", "none", "--name", name, "--label", "muster.cluster=test-world"]
    mounts = ["-v", "muster-cache-env:/shared/env:ro", "-v", f"{REPO}/trainer:/muster/trainer:ro", "-w", "/muster"]
    subprocess.run([*run, *mounts, "muster-node:24.11", "sleep", "600"], check=True, capture_output=True)
    yield name
    subprocess.run(["docker", "rm", "-f", name], check=False, capture_output=True)


def sh(node: str, script: str) -> subprocess.CompletedProcess[str]:
    env = ["-e", "OMP_NUM_THREADS=1", "-e", "TORCH_CPP_LOG_LEVEL=FATAL", "-e", "CUDA_VISIBLE_DEVICES=0,1"]
    return subprocess.run(
        ["docker", "exec", *env, node, "bash", "-c", script], capture_output=True, text=True, timeout=120
    )


def gate(node: str, ranks: range | tuple[int, ...], world: int, job: int, timeout_s: int = 60) -> dict[int, list[dict]]:
    """What each rank said; the hosts are names only, n-<rank>, and n-0 holds the store."""
    start = " ".join(
        f"SLURM_PROCID={r} SLURMD_NODENAME=n-{r} SLURM_NTASKS={world} SLURM_JOB_ID={job} "
        f"{PYTHON} -m trainer.gate n-0 127.0.0.1 {timeout_s} &"
        for r in ranks
    )
    said: dict[int, list[dict]] = {}
    for line in sh(node, f"{start} wait").stdout.splitlines():
        entry = json.loads(line.removeprefix("muster-gate "))
        said.setdefault(entry["rank"], []).append(entry)
    return said


def test_four_ranks_sum_right_on_cpu_although_gpus_are_announced(node: str):
    said = gate(node, range(4), 4, job=1)
    assert [said[r][-1]["stage"] for r in range(4)] == ["passed"] * 4
    assert {said[r][-1]["sum"] for r in range(4)} == {10.0}
    assert {entry["device"] for r in range(4) for entry in said[r] if entry["stage"] == "joined"} == {"cpu"}


def test_one_rank_alone_is_a_world(node: str):
    assert gate(node, (0,), 1, job=2)[0][-1]["sum"] == 1.0


def test_a_rank_that_does_not_come_is_named(node: str):
    said = gate(node, (0, 1), 3, job=3, timeout_s=8)
    assert said[0][-1]["stage"] == "failed"
    assert said[0][-1]["error"] == "did not join within 8 s: rank 2"


def test_ranks_that_disagree_on_the_world_are_refused(node: str):
    script = (
        "from datetime import timedelta; from trainer import world as w; from dataclasses import replace\n"
        "a = w.Member(0, 2, 0, 'n-0', '127.0.0.1', 'cpu'); b = replace(a, rank=1, host='n-1')\n"
        "print(w.disagreement([a, b]) or 'none'); print(w.disagreement([a, replace(b, world=3)]))\n"
        "print(w.disagreement([replace(a, device='cuda:0'), b]))\n"
        "print(w.missing_ranks([a], 4, per_host=2))"
    )
    assert sh(node, f'{PYTHON} -c "{script}"').stdout.splitlines() == [
        "none",
        "ranks disagree on the size of the world: rank 0 on n-0 sees 2, rank 1 on n-1 sees 3",
        "some ranks have a GPU and these have none: rank 1 on n-1",
        "rank 1 on n-0, rank 2, rank 3",
    ]


def test_the_smoke_job_prints_its_tables(node: str):
    done = sh(
        node,
        f"{PYTHON} -m torch.distributed.run --nnodes=1 --nproc-per-node=4 --master-addr=127.0.0.1 --master-port=29600 "
        "-m trainer.smoke",
    )
    assert done.returncode == 0, done.stderr
    assert "all-reduce of rank + 1 over 4 ranks: 10, as it should be" in done.stdout
    assert done.stdout.rstrip().endswith("smoke: passed")
    assert "\n64 MB " in done.stdout
