"""calibrate.sbatch with stubs for the Slurm commands: how torchrun is started on each node, and where it writes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slurm.test_jobs_smoke import SHOW_RENDEZVOUS, STUBS, check_rendezvous

JOB = Path(__file__).resolve().parents[2] / "slurm" / "jobs" / "calibrate.sbatch"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    programs = {tmp_path / "bin" / name: body for name, body in STUBS.items()}
    programs[tmp_path / "root/env/bin/python"] = SHOW_RENDEZVOUS + '; echo "$SLURMD_NODENAME: $*"; exit ${TORCHRUN:-0}'
    for path, body in programs.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    slurm = {"JOB_ID": "12345", "JOB_NODELIST": "gpu-[1-2]", "NNODES": "2", "CPUS_ON_NODE": "2"}
    base = {f"SLURM_{name}": value for name, value in slurm.items()} | {"SLURM_SUBMIT_DIR": str(tmp_path)}
    base |= {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "MUSTER_ROOT": str(tmp_path / "root")}

    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(JOB), *arguments]
        return subprocess.run(command, env=base | env, capture_output=True, text=True, timeout=240)

    return run


def test_all_nodes_write_to_the_same_file(run: Run, tmp_path: Path) -> None:
    done = run("--stack", "local")
    assert done.returncode == 0, done.stderr
    check_rendezvous(tmp_path / "root", done.stdout, run().stdout)
    first, second = [line for line in done.stdout.splitlines() if line.startswith("gpu-")]
    for line, address, is_host in ((first, "10.88.0.3", "true"), (second, "10.88.0.4", "false")):
        assert "--nnodes=2 --nproc-per-node=2 " in line
        assert f"--local-addr={address} " in line
        assert f"is_host={is_host}," in line
        assert line.endswith(f"-m simulator.calibrate --out {tmp_path}/profile.json --stack local")


def test_file_ranks_and_gpus_come_from_the_environment(run: Run, tmp_path: Path) -> None:
    out = run(PROFILE=str(tmp_path / "other.json"), SLURM_GPUS_ON_NODE="4").stdout
    assert "--nproc-per-node=4 " in out
    assert "--gpus-per-node=4" in out
    assert f"--out {tmp_path}/other.json" in out


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"TORCHRUN": "2"}, "see above"),
        ({"NODE_ADDR": "localhost"}, "the head node gpu-1 has no address others can reach (NodeAddr=localhost"),
        ({"PROFILE": "/none/profile.json"}, "cannot write to /none/profile.json: submit from your home directory"),
        ({"SLURM_JOB_ID": ""}, "not inside a job: submit it with sbatch"),
        ({"MUSTER_ROOT": "/none"}, "no training environment at /none/env"),
    ],
)
def test_errors_are_reported(run: Run, env: dict[str, str], message: str) -> None:
    done = run(**env)
    assert done.returncode == 1
    assert f"calibrate: FAILED: {message}" in done.stderr
