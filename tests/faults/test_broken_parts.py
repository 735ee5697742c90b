"""A part of a running cluster is full, killed or replaced: the error names it, and nothing hangs."""

from __future__ import annotations

import subprocess
import time

import pytest

from tests.fault_matrix.times import record
from tests.harness import HEAL, Stack, cut_off, wait_until

NEW_HOST_KEY = """cd /etc/ssh && mkdir previous && mv ssh_host_ed25519_key* previous
    ssh-keygen -q -t ed25519 -N '' -f ssh_host_ed25519_key
    systemctl restart ssh"""
OLD_HOST_KEY = "cd /etc/ssh && mv -f previous/* . && rmdir previous && systemctl restart ssh"
FILL_DISK = """mkdir -p /etc/muster && mount -t tmpfs -o size=16k tmpfs /etc/muster
    head -c 1M /dev/zero > /etc/muster/fill; true"""
# slurmctld saves its state every 5 s at most; when killed, it loses later changes.
STATE_SAVED_S = 7.0


@pytest.mark.fault(21)
def test_wrong_host_key_error_shows_both_fingerprints(healthy: Stack) -> None:
    healthy.ssh("gpu-2", NEW_HOST_KEY, user="root")
    healthy.spec["users"] = {"muster": {"uid": 2000}, "dave": {"uid": 2004}}
    done = healthy.up(check=False)
    healthy.container("gpu-2").exec_run(["bash", "-c", OLD_HOST_KEY])
    assert done.returncode != 0
    assert "gpu-2" in output_of(done)
    assert output_of(done).count("SHA256:") >= 2


@pytest.mark.fault(19)
def test_full_disk_error_names_the_node(healthy: Stack) -> None:
    healthy.ssh("gpu-1", FILL_DISK, user="root")
    healthy.spec["users"] = {"muster": {"uid": 2000}, "erin": {"uid": 2005}}
    done = healthy.up(check=False)
    healthy.ssh("gpu-1", "umount /etc/muster", user="root")
    assert done.returncode != 0
    assert "gpu-1" in output_of(done)
    assert "No space left on device" in output_of(done)


@pytest.mark.nightly
def test_node_without_fabric_fails_the_ready_gate(healthy: Stack) -> None:
    """The ports of the all-reduce are blocked on one node: `up` must fail and name it."""
    head = next(n["address"] for n in healthy.inventory["nodes"] if n["name"] == "gpu-1")
    healthy.ssh("gpu-2", cut_off(head), user="root")
    healthy.spec["groups"]["gpu"]["count"] = 3
    done = healthy.up(check=False)
    healthy.ssh("gpu-2", HEAL, user="root")
    assert done.returncode != 0
    assert "gpu-2" in output_of(done)
    assert '"ready"' not in healthy.muster("output", check=False).stdout


def test_up_repairs_all_earlier_faults_and_a_dead_node(healthy: Stack) -> None:
    """A single `up` repairs the wrong key, the full disk, the blocked ports and a dead node, which status shows."""
    healthy.container("gpu-2").kill()
    done = healthy.muster("status", check=False)
    assert "gpu-2" in output_of(done)
    assert "exited" in output_of(done).lower() or "down" in output_of(done).lower()
    assert "Traceback" not in output_of(done)
    healthy.up()
    for node in ("gpu-1", "gpu-2"):
        assert healthy.ssh(node, "id -u erin", user="root") == "2005"
    assert len(healthy.ssh("controller", "srun -p gpu -N2 hostname").splitlines()) == 2


@pytest.mark.fault(2, 3)
def test_killed_slurm_daemons_restart(healthy: Stack) -> None:
    job = healthy.ssh("controller", "cd ~ && sbatch --parsable -p gpu -w gpu-1,gpu-2 -N2 --wrap 'srun sleep 1200'")
    wait_until(lambda: healthy.ssh("controller", f"squeue -h -j {job} -o %T") == "RUNNING", "job runs")
    time.sleep(STATE_SAVED_S)
    healthy.ssh("controller", "systemctl kill -s KILL slurmctld", user="root")
    controller_killed = time.monotonic()
    healthy.ssh("gpu-2", "kill -9 $(systemctl show -p MainPID --value slurmd)", user="root")
    node_killed = time.monotonic()
    wait_until(
        lambda: healthy.ssh("controller", f"squeue -h -j {job} -o %T 2>/dev/null || true") == "RUNNING",
        "job still runs",
    )
    controller_back = time.monotonic()
    wait_until(
        lambda: healthy.ssh("gpu-2", "systemctl is-active slurmd || true", user="root") == "active",
        "slurmd is back",
    )
    node_back = time.monotonic()
    assert healthy.ssh("controller", f"scontrol show job {job} | grep -o Restarts=0") == "Restarts=0"
    healthy.ssh("controller", f"scancel {job}")
    record(2, recover_s=node_back - node_killed)
    record(3, recover_s=controller_back - controller_killed)


def output_of(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout + done.stderr
