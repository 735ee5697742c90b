"""A part is missing, full, killed or not what it was: the message names it, and nothing hangs."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.harness import HEAL, Spec, Stack, cut_off, small_spec, wait_until

NEW_HOST_KEY = """cd /etc/ssh && mkdir kept && mv ssh_host_ed25519_key* kept
    ssh-keygen -q -t ed25519 -N '' -f ssh_host_ed25519_key
    systemctl restart ssh"""
OLD_HOST_KEY = "cd /etc/ssh && mv -f kept/* . && rmdir kept && systemctl restart ssh"
FILL_DISK = """mkdir -p /etc/muster && mount -t tmpfs -o size=16k tmpfs /etc/muster
    head -c 1M /dev/zero > /etc/muster/fill; true"""

# slurmctld writes its state at most every 5 s; it knows nothing of what it did after that once it was killed.
STATE_SAVED_S = 7.0

MakeStack = Callable[[str, Spec], Stack]


@pytest.fixture
def unmade(make_stack: MakeStack) -> Iterator[Stack]:
    stack = make_stack("unmade", small_spec(login={"enabled": False}))
    yield stack
    stack.muster("teardown", "--yes", "--force")
    assert stack.exists() == []


@pytest.fixture(scope="module")
def stack(make_stack: MakeStack) -> Iterator[Stack]:
    """Up for all who break something in it; each mends what it broke, and sees that `up` finds it whole again."""
    stack = make_stack("broken", small_spec(login={"enabled": False}))
    stack.up()
    yield stack
    stack.muster("teardown", "--yes", "--force")
    assert stack.exists() == []


def said(done: object) -> str:
    return f"{getattr(done, 'stdout', '')}{getattr(done, 'stderr', '')}"


def test_docker_stopped_is_one_message(make_stack: MakeStack) -> None:
    stack = make_stack("dead", small_spec())
    stack.env["DOCKER_HOST"] = "unix:///nonexistent/docker.sock"
    for command in (("up",), ("status",), ("teardown", "--yes")):
        done = stack.muster(*command, check=False, timeout=30)
        assert done.returncode != 0
        assert "Docker" in said(done)
        assert "/nonexistent/docker.sock" in said(done)
        assert "Traceback" not in said(done)


def test_a_node_killed_during_bootstrap_is_named(unmade: Stack) -> None:
    def kill_when_bootstrapping() -> None:
        log = unmade.home / unmade.name / "progress.jsonl"
        wait_until(lambda: log.exists() and '"bootstrap"' in log.read_text(), "bootstrap begins", 90)
        unmade.container("gpu-2").kill()

    killer = threading.Thread(target=kill_when_bootstrapping)
    killer.start()
    began = time.monotonic()
    done = unmade.up(check=False)
    killer.join()
    assert done.returncode != 0
    assert "gpu-2" in said(done)
    assert "Traceback" not in said(done)
    assert time.monotonic() - began < 150
    unmade.up()
    assert len(unmade.ssh("controller", "srun -p gpu -N2 hostname").splitlines()) == 2


def test_a_wrong_host_key_is_refused_with_both_fingerprints(stack: Stack) -> None:
    stack.ssh("gpu-2", NEW_HOST_KEY, user="root")
    stack.spec["users"] = {"muster": {"uid": 2000}, "dave": {"uid": 2004}}
    done = stack.up(check=False)
    stack.container("gpu-2").exec_run(["bash", "-c", OLD_HOST_KEY])
    assert done.returncode != 0
    assert "gpu-2" in said(done)
    assert said(done).count("SHA256:") >= 2
    stack.up()
    assert stack.ssh("gpu-2", "id -u dave", user="root") == "2004"


def test_a_full_disk_in_a_node_is_named(stack: Stack) -> None:
    stack.ssh("gpu-1", FILL_DISK, user="root")
    stack.spec["users"] = {"muster": {"uid": 2000}, "erin": {"uid": 2005}}
    done = stack.up(check=False)
    stack.ssh("gpu-1", "umount /etc/muster", user="root")
    assert done.returncode != 0
    assert "gpu-1" in said(done)
    assert "No space left on device" in said(done)
    stack.up()
    assert stack.ssh("gpu-1", "id -u erin", user="root") == "2005"


def test_a_port_that_is_taken_is_named_and_nothing_half_made_is_left(make_stack: MakeStack) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        spec = small_spec(network={"egress": True}, login={"ssh_port": port}, groups={"cpu": {"count": 1}})
        stack = make_stack("port", spec)
        done = stack.up(check=False)
        assert done.returncode != 0
        assert "login.ssh_port" in said(done)
        assert str(port) in said(done)
        assert f"muster-{stack.cluster}-login" not in stack.exists()
    stack.muster("teardown", "--yes")
    assert stack.exists() == []


def test_a_node_that_cannot_join_the_fabric_fails_the_ready_gate(stack: Stack) -> None:
    """The all-reduce ports of one node are cut between bootstrap and the gate: `up` must fail and name a node."""
    head = next(n["address"] for n in stack.inventory["nodes"] if n["name"] == "gpu-1")
    stack.ssh("gpu-2", cut_off(head), user="root")
    stack.spec["groups"]["gpu"]["count"] = 3
    done = stack.up(check=False)
    stack.ssh("gpu-2", HEAL, user="root")
    assert done.returncode != 0
    assert "gpu-2" in said(done)
    assert '"ready"' not in stack.muster("output", check=False).stdout
    stack.up()


def test_a_dead_node_is_a_red_row_in_status_not_a_traceback(stack: Stack) -> None:
    stack.container("gpu-2").kill()
    done = stack.muster("status", check=False)
    assert "gpu-2" in said(done)
    assert "exited" in said(done).lower() or "down" in said(done).lower()
    assert "Traceback" not in said(done)
    stack.up()
    assert len(stack.ssh("controller", "srun -p gpu -N2 hostname").splitlines()) == 2


def test_a_slurm_daemon_that_dies_comes_back_by_itself(stack: Stack) -> None:
    job = stack.ssh("controller", "cd ~ && sbatch --parsable -p gpu -w gpu-1,gpu-2 -N2 --wrap 'srun sleep 120'")
    wait_until(lambda: stack.ssh("controller", f"squeue -h -j {job} -o %T") == "RUNNING", "job runs")
    time.sleep(STATE_SAVED_S)
    stack.ssh("controller", "systemctl kill -s KILL slurmctld", user="root")
    stack.ssh("gpu-2", "kill -9 $(systemctl show -p MainPID --value slurmd)", user="root")
    wait_until(
        lambda: stack.ssh("controller", f"squeue -h -j {job} -o %T 2>/dev/null || true") == "RUNNING",
        "job still runs",
        20,
    )
    wait_until(
        lambda: stack.ssh("gpu-2", "systemctl is-active slurmd || true", user="root") == "active", "slurmd is back", 20
    )
    assert stack.ssh("controller", f"scontrol show job {job} | grep -o Restarts=0") == "Restarts=0"
    stack.ssh("controller", f"scancel {job}")
