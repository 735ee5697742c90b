"""The smoke job, submitted with `sbatch` on the login node and with `muster submit` from outside."""

from __future__ import annotations

import re

import pytest

from tests.harness import HEAL, Stack, cut_off, wait_until

SMOKE = "slurm/jobs/smoke.sbatch"


def parse_rank_rows(text: str) -> list[tuple[str, str]]:
    """Return (rank, host) of each row in the table of ranks."""
    return re.findall(r"^\W*(\d+)\W+(gpu-\d)\b", text, flags=re.MULTILINE)


@pytest.mark.nightly
def test_the_smoke_job_runs_with_plain_sbatch(cluster: Stack) -> None:
    out = cluster.ssh("login", f"cd ~ && sbatch --wait --parsable /shared/muster/{SMOKE} && cat smoke-*.out")
    assert parse_rank_rows(out) == [("0", "gpu-1"), ("1", "gpu-1"), ("2", "gpu-2"), ("3", "gpu-2")]
    assert re.search(r"\b(MB|MiB)\b.*/s", out)


def test_submit_follows_the_log_until_the_job_ends(cluster: Stack) -> None:
    """By day, `make demo` submits the smoke job and a training job in the same way."""
    job = cluster.home / "waiting.sbatch"
    job.write_text("#!/bin/bash\n#SBATCH -p gpu -N2\nsrun hostname | sort; sleep 2; echo the end\n")
    out = cluster.muster("submit", str(job)).stdout
    expected = ["gpu-1", "gpu-2", "the end"]
    assert [line.strip() for line in out.splitlines() if line.strip() in expected] == expected
    assert "COMPLETED" in out


def test_submit_fails_when_the_job_fails(cluster: Stack) -> None:
    job = cluster.home / "broken.sbatch"
    job.write_text("#!/bin/bash\n#SBATCH -p gpu -N1\necho before the end; exit 3\n")
    done = cluster.muster("submit", str(job), check=False)
    assert done.returncode != 0
    assert "before the end" in done.stdout
    assert "FAILED" in done.stdout + done.stderr


def test_submit_of_a_missing_file_is_an_error(cluster: Stack) -> None:
    done = cluster.muster("submit", "slurm/jobs/none.sbatch", check=False)
    assert done.returncode == 2
    assert "slurm/jobs/none.sbatch" in done.stderr + done.stdout
    assert "smoke.sbatch" in done.stderr + done.stdout


def test_accounting_records_the_gpus_of_a_job(cluster: Stack) -> None:
    cluster.ssh("login", "srun -p gpu -N2 --gpus-per-node=2 -J counted true")
    show = "sacct -X -n -P --name=counted -o State,AllocTRES -S now-1hour"
    wait_until(lambda: "COMPLETED" in cluster.ssh("login", show), "the record of the job")
    assert "gres/gpu=4" in cluster.ssh("login", show)


@pytest.mark.nightly
def test_a_rank_that_cannot_join_is_named(cluster: Stack) -> None:
    """If a node cannot reach the rendezvous, the job must fail and name it instead of splitting in two."""
    head = next(n["address"] for n in cluster.inventory["nodes"] if n["name"] == "gpu-1")
    cluster.ssh("gpu-2", cut_off(head), user="root")
    try:
        out = cluster.ssh(
            "login", f"cd ~ && SMOKE_TIMEOUT_S=20 sbatch --wait -J lost /shared/muster/{SMOKE} || true; cat lost-*.out"
        )
    finally:
        cluster.ssh("gpu-2", HEAL, user="root")
    assert "gpu-2" in out
    assert "did not join" in out
