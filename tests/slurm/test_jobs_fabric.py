"""fabric.sbatch with stubs for Slurm's commands and the smoke job: what is measured, and when the job fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.slurm.rdma_trees import NDR, add_device

SLURM = Path(__file__).resolve().parents[2] / "slurm"
SIZE = str(64 * 2**20)
STUBS = {
    "scontrol": "printf '%s\\n' $NODES",
    "srun": """while [ "$1" != python3 ]; do
  case $1 in --nodelist=*) NODES=${1#--nodelist=} NODES=${NODES//,/ } ;; esac
  shift
done
for node in $NODES; do SLURMD_NODENAME=$node "$@" & done
wait""",
    # The server has no argument after its options; the client measures $GBPS at the port mlx5_1, if it is set.
    "ib_write_bw": """[[ ${!#} == gpu-* ]] || exit 0
case "$*" in *"-d mlx5_1 "*) gbps=${GBPS:-391.0} ;; *) gbps=391.0 ;; esac
echo ' #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]'
[ "$gbps" = none ] || echo " 1048576    5000             0.00               $gbps              0.011"
""",
    "ib_write_lat": """[[ ${!#} == gpu-* ]] || exit 0
echo ' #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]'
echo ' 2       1000          1.76           6.12         1.79               1.80'
""",
}
IDLE = {"counters/port_xmit_data": "0"}
INFINIBAND = {"fabric": "infiniband", "rdma": {"mlx5_0:1": 400.0, "mlx5_1:1": 400.0}}
# Measures the speed of $GB_PER_S; pairs with the node $SLOW_NODE reach a tenth of it.
SMOKE = f"""echo "measured $SLURM_JOB_NODELIST"
[ "$NCCL_MNNVL_ENABLE" = 0 ] || echo "over NVLink between machines"
[ "$SLURM_JOB_NODELIST" != "${{UNREACHABLE:-}}" ] || exit 1
if [ -n "${{NCCL_LOG:-}}" ] && [ -n "${{NCCL_DEBUG_FILE:-}}" ]; then
  name=$(uname -n)
  echo "$NCCL_LOG" >"${{NCCL_DEBUG_FILE//%h/${{name%%.*}}}}"
fi
case $SLURM_JOB_NODELIST in *"${{SLOW_NODE:-none}}"*) GB_PER_S=$((GB_PER_S / 10)) ;; esac
echo "{{\\"{SIZE}\\": $GB_PER_S}}" >"$SMOKE_JSON"
"""
RunJob = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_job(tmp_path: Path) -> RunJob:
    for name, body in STUBS.items():
        stub = tmp_path / "bin" / name
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(f"#!/bin/bash\n{body}\n")
        stub.chmod(0o755)
    root, expected = tmp_path / "root" / "slurm", tmp_path / "expected.json"
    shutil.copytree(SLURM, root, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "jobs" / "smoke.sbatch").write_text(SMOKE)
    command = root / "fabric" / "__main__.py"
    command.write_text(command.read_text().replace("/etc/muster/expected.json", str(expected)))

    def run(
        *nodes: str,
        expected_gb_per_s: float | None = None,
        machine: Mapping[str, object] | None = None,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        busbw = {} if expected_gb_per_s is None else {SIZE: expected_gb_per_s}
        expected.write_text(json.dumps({"fabric": "tcp", "busbw": busbw, **(machine or {})}))
        environment = {
            # This Python: the job starts it a dozen times, and a shim for several versions takes longer to start.
            "PATH": f"{tmp_path}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "MUSTER_ROOT": str(root.parent),
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "all",
            "SLURM_NNODES": str(len(nodes)),
            "NODES": " ".join(nodes),
            "GB_PER_S": "40",
            "SYSFS": str(tmp_path),
        }
        return subprocess.run(
            ["bash", SLURM / "jobs" / "fabric.sbatch"],
            cwd=tmp_path,
            env=environment | variables,
            text=True,
            capture_output=True,
            timeout=240,
        )

    return run


def list_pairs(folder: Path) -> set[str]:
    """Return the names of the pairs that were measured, and of those that were measured again."""
    return {file.name.removeprefix("pair.").removesuffix(".json") for file in folder.glob("fabric-7/pair.*.json")}


def test_as_fast_as_expected_passes_without_measuring_pairs(run_job: RunJob, tmp_path: Path) -> None:
    done = run_job("gpu-1", "gpu-2", expected_gb_per_s=40)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["measured all", "fabric: passed"])
    assert list_pairs(tmp_path) == set()


def test_without_an_expected_speed_the_job_passes(run_job: RunJob) -> None:
    done = run_job("gpu-1", "gpu-2")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "fabric: passed")


def test_below_the_expected_speed_pairs_are_measured_twice_and_the_job_fails(run_job: RunJob, tmp_path: Path) -> None:
    done = run_job("gpu-1", "gpu-2", expected_gb_per_s=900)
    assert done.returncode == 1
    assert "fabric: 40.0 GB/s at 64 MiB is 4% of the expected 900.0" in done.stdout
    assert "fabric: gpu-1 and gpu-2: 40.00 GB/s" in done.stdout
    assert done.stderr.startswith("fabric: FAILED: see above; measurements in ")
    assert list_pairs(tmp_path) == {"gpu-1,gpu-2", "gpu-1,gpu-2.again"}


def test_a_slow_node_is_named(run_job: RunJob, tmp_path: Path) -> None:
    done = run_job("gpu-1", "gpu-2", "gpu-3", FABRIC_PAIRS="always", SLOW_NODE="gpu-2")
    assert done.returncode == 1
    assert "fabric: below: gpu-2: 4.00 GB/s at best with its neighbours, others reach 40.00" in done.stdout
    assert json.loads((tmp_path / "fabric-7" / "result.json").read_text())["below"].keys() == {"gpu-2"}


def test_pairs_show_where_a_failed_run_failed(run_job: RunJob, tmp_path: Path) -> None:
    done = run_job("gpu-1", "gpu-2", "gpu-3", UNREACHABLE="all", SLOW_NODE="gpu-3")
    assert done.returncode == 1
    assert "fabric: the run across all nodes failed" in done.stdout
    assert "fabric: below: gpu-3" in done.stdout
    assert {"gpu-1,gpu-2", "gpu-2,gpu-3", "gpu-1,gpu-3"} <= list_pairs(tmp_path)


def test_all_pairs_are_measured_on_request_and_equal_speeds_pass(run_job: RunJob, tmp_path: Path) -> None:
    done = run_job("gpu-1", "gpu-2", "gpu-3", FABRIC_PAIRS="always")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "fabric: passed")
    assert list_pairs(tmp_path) == {"gpu-1,gpu-2", "gpu-2,gpu-3", "gpu-1,gpu-3"}


def test_good_links_of_infiniband_pass(run_job: RunJob, tmp_path: Path) -> None:
    done = run_job("gpu-1", "gpu-2", "gpu-3", machine=INFINIBAND)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "fabric: passed")
    assert len(list(tmp_path.glob("fabric-7/link.*.json"))) == 3
    assert list_pairs(tmp_path) == set()


def test_a_slow_link_of_infiniband_fails_and_is_named(run_job: RunJob, tmp_path: Path) -> None:
    done = run_job("gpu-1", "gpu-2", machine=INFINIBAND, GBPS="92.6")
    assert done.returncode == 1
    assert "fabric: gpu-1 and gpu-2: mlx5_1:1 reaches 92.6 of 400 Gb/s" in done.stdout.splitlines()
    result = json.loads((tmp_path / "fabric-7" / "result.json").read_text())
    assert [(link["port"], link["gbps"], link["us"]) for link in result["links"]] == [
        ("mlx5_0:1", 391.0, 1.79),
        ("mlx5_1:1", 92.6, 1.79),
    ]
    assert result["unclear"] == "gpu-1 and gpu-2: mlx5_1:1 reaches 92.6 of 400 Gb/s"


def test_a_link_that_cannot_be_measured_fails(run_job: RunJob) -> None:
    done = run_job("gpu-1", "gpu-2", machine=INFINIBAND, GBPS="none")
    assert done.returncode == 1
    assert "fabric: gpu-1 and gpu-2: no connection at mlx5_1:1 (" in done.stdout


def test_ports_that_a_job_over_tcp_does_not_use_are_not_judged(run_job: RunJob, tmp_path: Path) -> None:
    add_device(tmp_path, "mlx5_0", ["0000:01:00.0"], {1: NDR | IDLE})
    done = run_job("gpu-1", "gpu-2", machine={"fabric": "tcp"})
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "fabric: passed")
    assert json.loads((tmp_path / "fabric-7" / "gpu-1.after.json").read_text()) == {"mlx5_0:1": 0}


def test_a_port_of_the_fabric_that_sent_nothing_fails_whatever_its_number_is(run_job: RunJob, tmp_path: Path) -> None:
    add_device(tmp_path, "mlx5_0", ["0000:01:00.0"], {1: NDR | IDLE, 2: NDR | IDLE})
    machine = {"fabric": "infiniband", "gpus": 8, "rdma": {"mlx5_0:2": 400.0}}
    done = run_job("gpu-1", machine=machine)
    assert done.returncode == 1
    assert "fabric: gpu-1: mlx5_0:2 sent nothing" in done.stdout.splitlines()


def test_nccl_that_uses_tcp_fails_with_the_name_of_the_node(run_job: RunJob) -> None:
    # Machines that muster did not create have other names than their nodes; here, that of this machine.
    log = "h:7:9 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.7<0>"
    done = run_job("gpu-1", machine=INFINIBAND | {"gpus": 8}, NCCL_LOG=log)
    assert done.returncode == 1
    assert "fabric: gpu-1: NCCL used socket, not infiniband" in done.stdout.splitlines()
