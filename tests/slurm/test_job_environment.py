"""The linter of job environments: the variables that it parses from a job file, and its verdict on each."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm.job_environment import RULES, Fabric, Setting, check_settings, parse_settings

JOBS = Path(__file__).parents[2] / "slurm" / "jobs"
JOB = """\
#!/bin/bash
#SBATCH --nodes=2
# export NCCL_ALGO=ring
export FI_PROVIDER=efa FI_EFA_USE_DEVICE_RDMA=1
export NCCL_PROTO="simple"; export NCCL_DEBUG=INFO
NCCL_SOCKET_IFNAME='^docker,lo,eth' srun python train.py
echo NCCL_ALGO=ring
"""


def test_settings_are_parsed_with_their_line() -> None:
    assert list(parse_settings(JOB)) == [
        Setting("FI_PROVIDER", "efa", 4),
        Setting("FI_EFA_USE_DEVICE_RDMA", "1", 4),
        Setting("NCCL_PROTO", "simple", 5),
        Setting("NCCL_DEBUG", "INFO", 5),
        Setting("NCCL_SOCKET_IFNAME", "^docker,lo,eth", 6),
    ]


def test_findings_of_a_job_with_outdated_settings() -> None:
    assert [str(finding) for finding in check_settings(parse_settings(JOB), "efa")] == [
        "obsolete line 4: FI_EFA_USE_DEVICE_RDMA=1: libfabric does this by itself since 1.18",
        "harmful  line 5: NCCL_PROTO=simple: switches the tuner off; was needed by EFA plugins up to 1.5",
        "needless line 5: NCCL_DEBUG=INFO: fills every rank's log; use it only to debug",
        "harmful  line 6: NCCL_SOCKET_IFNAME=^docker,lo,eth: excludes the interface that ranks use to meet",
    ]


@pytest.mark.parametrize(
    ("variable", "value", "fabric", "verdicts"),
    [
        ("NCCL_NET", "Socket", "efa", ["harmful"]),
        ("NCCL_NET", "Socket", "tcp", []),
        ("NCCL_NET", "Libfabric", "efa", []),
        ("FI_PROVIDER", "tcp", "efa", ["harmful"]),
        ("FI_PROVIDER", "efa", "efa", []),
        ("NCCL_NET_PLUGIN", "spcx", "efa", ["harmful"]),
        ("NCCL_NET_PLUGIN", "ofi", "efa", []),
        ("RDMAV_FORK_SAFE", "1", "efa", ["harmful"]),
        ("NCCL_BUFFSIZE", "4194304", "infiniband", []),
        ("NCCL_SOCKET_IFNAME", "^docker,lo,veth", "efa", []),
        ("NCCL_SOCKET_NTHREADS", "4", "tcp", []),
        ("NCCL_SOCKET_NTHREADS", "4", "infiniband", ["needless"]),
        ("NCCL_IB_HCA", "mlx5", "infiniband", ["harmful"]),
        ("NCCL_IB_HCA", "mlx5", "efa", []),
        ("NCCL_IB_GID_INDEX", "3", "roce", ["needless"]),
        ("NCCL_NET", "Socket", "roce", ["harmful"]),
        ("NCCL_DEBUG", "WARN", "efa", []),
        ("FI_EFA_USE_HUGE_PAGE", "0", "efa", []),
        ("PATH", "/usr/bin", "efa", []),
    ],
)
def test_verdict(variable: str, value: str, fabric: Fabric, verdicts: list[str]) -> None:
    assert [finding.verdict for finding in check_settings([Setting(variable, value)], fabric)] == verdicts


def test_each_variable_has_one_rule() -> None:
    assert len({rule.variable for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("job", sorted(JOBS.glob("*.sbatch")), ids=lambda path: path.name)
@pytest.mark.parametrize("fabric", ["tcp", "efa", "infiniband", "roce"])
def test_our_own_jobs_have_no_findings(job: Path, fabric: Fabric) -> None:
    """Only the fabric job may set NCCL_DEBUG, because it reads NCCL's log."""
    expected = ["NCCL_DEBUG"] if job.name == "fabric.sbatch" else []
    assert [finding.setting.variable for finding in check_settings(parse_settings(job.read_text()), fabric)] == expected
