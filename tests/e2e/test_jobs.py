"""The smoke job: by plain `sbatch` on the login node, and by `muster submit` from outside."""

from __future__ import annotations

import re

from tests.harness import HEAL, Stack, cut_off

SMOKE = "slurm/jobs/smoke.sbatch"


def rank_rows(text: str) -> list[tuple[str, str]]:
    """(rank, host) of the table of ranks."""
    return re.findall(r"^\W*(\d+)\W+(gpu-\d)\b", text, flags=re.MULTILINE)


def test_smoke_by_plain_sbatch_on_the_login_node(cluster: Stack) -> None:
    out = cluster.ssh("login", f"cd ~ && sbatch --wait --parsable /shared/muster/{SMOKE} && cat smoke-*.out")
    assert rank_rows(out) == [("0", "gpu-1"), ("1", "gpu-1"), ("2", "gpu-2"), ("3", "gpu-2")]
    assert re.search(r"\b(MB|MiB)\b.*/s", out)


def test_submit_follows_the_log_to_the_end(cluster: Stack) -> None:
    out = cluster.muster("submit", SMOKE).stdout
    assert len(rank_rows(out)) == 4
    assert "COMPLETED" in out


def test_submit_fails_when_the_job_fails(cluster: Stack) -> None:
    job = cluster.home / "broken.sbatch"
    job.write_text("#!/bin/bash\n#SBATCH -p gpu -N1\necho before the end; exit 3\n")
    done = cluster.muster("submit", str(job), check=False)
    assert done.returncode != 0
    assert "before the end" in done.stdout
    assert "FAILED" in done.stdout + done.stderr


def test_submit_of_a_file_that_is_not_there_says_so(cluster: Stack) -> None:
    done = cluster.muster("submit", "slurm/jobs/none.sbatch", check=False)
    assert done.returncode == 2
    assert "slurm/jobs/none.sbatch" in done.stderr + done.stdout
    assert "smoke.sbatch" in done.stderr + done.stdout


def test_accounting_has_the_job_with_its_gpus(cluster: Stack) -> None:
    rows = cluster.ssh("login", "sacct -X -n -P -o JobName,State,AllocTRES -S now-1hour | grep smoke")
    assert "COMPLETED" in rows
    assert "gres/gpu=4" in rows


def test_a_rank_that_cannot_join_is_named(cluster: Stack) -> None:
    """One node cannot reach the rendezvous: the job must fail and say which host, not split into two worlds."""
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
