"""smoke.sbatch with stubs for the Slurm commands: how torchrun is started, and how failures are reported."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

JOB = Path(__file__).resolve().parents[2] / "slurm" / "jobs" / "smoke.sbatch"

STUBS = {
    "scontrol": """case "$2" in
        hostnames) printf '%s\\n' gpu-1 gpu-2 ;;
        node) echo "NodeName=$3 Arch=x86_64 NodeAddr=${NODE_ADDR-10.88.0.3} NodeHostName=$3" ;;
    esac""",
    "getent": 'case "$2" in [0-9]*) echo "$2 STREAM $2" ;; localhost*) echo "127.0.0.1 STREAM x" ;; *) exit 2 ;; esac',
    "ip": 'echo "$5 via 10.88.0.1 dev eth0 src ${LOCAL_ADDR-10.88.0.$((2 + ${SLURMD_NODENAME#gpu-}))} uid 0"',
    # Other users can see a command line, so no port is on this one. A node that is cut off has another connection to
    # the head node.
    "ss": """echo "ss $*" >>"$MUSTER_ROOT/commands"
        case "$*" in *established*)
            [ "$SLURMD_NODENAME" != "${CUT_OFF:-}" ] || port=6818
            printf '0 0 10.88.0.4:40000 10.88.0.3:22\\n0 0 [::ffff:10.88.0.4]:40002 [::ffff:10.88.0.3]:%s\\n' "$port"
        esac""",
    # Runs the step on both nodes, one after the other, and fails if it fails on either. As on a cluster whose switches
    # have another order than its nodes, the second node is number 0.
    "srun": """echo "srun $*"
        while [ "$1" != bash ]; do shift; done
        code=0
        for id in 1 2; do SLURM_NODEID=$((2 - id)) SLURMD_NODENAME=gpu-$id "$@" || code=1; done
        exit $code""",
}

# A real torchrun does not end before the job has recorded that its node has joined, which takes a second at most.
WAIT_UNTIL_JOINED = """[ "$SLURMD_NODENAME" = "${CUT_OFF:-}" ] ||
    until [ -e "$joined/$SLURMD_NODENAME" ]; do sleep 0.01; done"""
# Printed by the stub of torchrun, which gets id and address of the rendezvous in its environment.
SHOW_RENDEZVOUS = 'echo "rendezvous $PET_RDZV_ID $PET_RDZV_ENDPOINT"'


def check_rendezvous(root: Path, *outputs: str) -> None:
    """Check that the nodes of a job agree on a rendezvous that no other job and no command line shows."""
    outputs = tuple(each + (root / "commands").read_text() for each in outputs)
    pairs = [
        set(re.findall(r"^rendezvous ([0-9a-f-]{36}) 10\.88\.0\.3:(2\d{4})$", each, re.MULTILINE)) for each in outputs
    ]
    assert [len(each) for each in pairs] == [1] * len(outputs)
    ids, ports = zip(*(each.pop() for each in pairs), strict=True)
    assert len(set(ids)) == len(outputs)
    for output, secret in zip((*outputs, *outputs), (*ids, *ports), strict=True):
        assert not [line for line in output.splitlines() if secret in line and not line.startswith("rendezvous")]


@pytest.fixture
def job(tmp_path: Path):
    for name, body in STUBS.items():
        stub = tmp_path / "bin" / name
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(f"#!/bin/bash\n{body}\n")
        stub.chmod(0o755)
    python = tmp_path / "root" / "env" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f'#!/bin/bash\n{SHOW_RENDEZVOUS}\necho "$SLURMD_NODENAME: $*"\n{WAIT_UNTIL_JOINED}\nexit ${{TORCHRUN:-0}}\n'
    )
    python.chmod(0o755)

    def run(**env: str) -> subprocess.CompletedProcess[str]:
        base = {
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
            "MUSTER_ROOT": str(tmp_path / "root"),
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "SLURM_JOB_ID": "12345",
            "SLURM_JOB_NODELIST": "gpu-[1-2]",
            "SLURM_NNODES": "2",
            "SLURM_CPUS_ON_NODE": "2",
        }
        return subprocess.run(["bash", str(JOB)], env=base | env, capture_output=True, text=True, timeout=240)

    return run


def test_each_node_gets_its_own_address_and_only_the_first_is_host(job, tmp_path: Path):
    done = job()
    assert done.returncode == 0, done.stderr
    first, second = [line for line in done.stdout.splitlines() if line.startswith("gpu-")]
    check_rendezvous(tmp_path / "root", done.stdout, job().stdout)
    assert "--local-addr=10.88.0.3 " in first
    assert "--local-addr=10.88.0.4 " in second
    assert "is_host=true" in first
    assert "is_host=false" in second
    assert all(
        "--nnodes=2 --nproc-per-node=2 " in line and line.endswith("-m trainer.smoke") for line in (first, second)
    )


def test_ranks_and_timeout_come_from_the_environment(job):
    out = job(RANKS_PER_NODE="8", SMOKE_TIMEOUT_S="20").stdout
    assert "--nproc-per-node=8 " in out
    assert "join_timeout=20,read_timeout=20" in out


def test_the_program_on_the_ranks_comes_from_the_environment(job):
    out = job(SMOKE_PROGRAM="trainer measure-collectives").stdout
    assert [line for line in out.splitlines() if line.startswith("gpu-") and "trainer" in line]
    assert all(line.endswith("-m trainer measure-collectives") for line in out.splitlines() if line.startswith("gpu-"))


def test_the_step_requests_the_gpus_of_the_job(job):
    assert "--gpus-per-node" not in job().stdout
    assert "--gpus-per-node=4" in job(SLURM_GPUS_ON_NODE="4").stdout


@pytest.mark.parametrize("address", ["localhost", "127.0.1.1", "no-such-name"])
def test_a_head_node_that_others_cannot_reach_is_rejected(job, address: str):
    done = job(NODE_ADDR=address)
    assert done.returncode == 1
    assert f"the head node gpu-1 has no address others can reach (NodeAddr={address}" in done.stderr
    assert "torch" not in done.stdout


def test_a_node_that_would_advertise_loopback_fails(job):
    done = job(LOCAL_ADDR="127.0.0.1")
    assert done.returncode == 1
    assert "smoke: FAILED: gpu-2 has no address towards 10.88.0.3 (found '127.0.0.1')" in done.stderr


def test_a_node_that_did_not_join_is_named(job):
    done = job(TORCHRUN="1", CUT_OFF="gpu-2")
    assert done.returncode == 1
    assert "smoke: gpu-2 did not join: it never reached gpu-1 at 10.88.0.3\n" in done.stderr
    assert "gpu-1 did not join" not in done.stderr


def test_nothing_is_left_in_the_submit_directory(job, tmp_path: Path):
    job(TORCHRUN="1")
    assert list(tmp_path.glob(".smoke-*")) == []


def test_running_outside_a_job_is_an_error_with_the_command(job):
    done = job(SLURM_JOB_ID="")
    assert (done.returncode, done.stderr) == (1, "smoke: FAILED: not inside a job: submit it with sbatch\n")


def test_a_missing_environment_is_reported_with_its_path(job, tmp_path: Path):
    done = job(MUSTER_ROOT=str(tmp_path / "elsewhere"))
    assert done.stderr == f"smoke: FAILED: no training environment at {tmp_path}/elsewhere/env\n"


def test_the_sbatch_options():
    header = [line.split()[1] for line in JOB.read_text().splitlines() if line.startswith("#SBATCH")]
    assert {"--job-name=smoke", "--nodes=2", "--output=%x-%j.out", "--open-mode=append"} <= set(header)


def test_all_nodes_use_the_files_that_the_link_led_to_at_the_start(job, tmp_path: Path):
    link, python = tmp_path / "link", tmp_path / "root" / "env" / "bin" / "python"
    link.symlink_to("root")
    update = 'echo "files: $0 $PYTHONPATH"\nln -sfn elsewhere "$LINK"'
    python.write_text(python.read_text().replace("#!/bin/bash\n", f"#!/bin/bash\n{update}\n", 1))
    done = job(MUSTER_ROOT=str(link), LINK=str(link))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"files: {python} {tmp_path}/root\n") == 2
