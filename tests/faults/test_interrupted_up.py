"""An `up` that is interrupted repeatedly leaves a clear message or no process; the next `up` repairs the cluster.

All interruptions hit the same cluster, each at a later point than the one before.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.fault_matrix.times import record
from tests.faults.conftest import MakeStack
from tests.faults.docker_proxy import DockerProxy
from tests.faults.interruption import Point, clear_progress, containers, kill_at, lose_state, progress
from tests.harness import Stack, existing, small_spec, wait_until

POINTS: dict[str, Point] = {
    "the first machine exists": lambda stack: containers(stack) >= 1,
    "bootstrap has begun": lambda stack: '"bootstrap"' in progress(stack),
    "the ready job runs": lambda stack: '"ready"' in progress(stack),
}
# An SSH timeout detects a dead node; this is much longer, also for an `up` on a busy machine.
UP_FAILS_WITHIN_S = 450


def test_docker_that_does_not_answer_is_a_clear_error(make_stack: MakeStack) -> None:
    stack = make_stack("dead", small_spec())
    stack.env["DOCKER_HOST"] = "unix:///nonexistent/docker.sock"
    for command in (("up",), ("status",), ("teardown", "--yes")):
        done = stack.muster(*command, check=False, timeout=240)
        output = done.stdout + done.stderr
        assert done.returncode != 0
        assert "Docker" in output
        assert "/nonexistent/docker.sock" in output
        assert "Traceback" not in output


def test_docker_stops_while_machines_are_created(broken: Stack, tmp_path: Path) -> None:
    proxy = DockerProxy(tmp_path / "docker.sock")
    broken.env["DOCKER_HOST"] = f"unix://{tmp_path}/docker.sock"
    try:
        up = broken.start("up")
        wait_until(lambda: bool(existing(broken.cluster)) or up.poll() is not None, "the first part exists")
        proxy.stop()
        assert up.wait(timeout=450) != 0
    finally:
        del broken.env["DOCKER_HOST"]
    output = (broken.home / "started.log").read_text()
    assert "Docker" in output
    assert "docker.sock" in output
    assert "Traceback" not in output


@pytest.mark.nightly
@pytest.mark.fault(22)
def test_teardown_removes_a_killed_up_with_a_lost_state(broken: Stack) -> None:
    kill_at(broken, "bootstrap has begun", POINTS["bootstrap has begun"])
    lose_state(broken)
    receipt = broken.muster("teardown", "--yes").stdout
    assert broken.exists() == []
    assert f"muster-{broken.cluster}-gpu-1" in receipt


@pytest.mark.fault(22)
@pytest.mark.parametrize("point", ["the first machine exists", "bootstrap has begun"])
def test_killed_up_leaves_no_process(broken: Stack, point: str) -> None:
    """Each `up` starts from what the killed one left and gets further."""
    kill_at(broken, point, POINTS[point])


@pytest.mark.fault(19)
def test_error_names_a_node_that_dies_during_bootstrap(broken: Stack) -> None:
    clear_progress(broken)
    killed_at: list[float] = []

    def kill_when_bootstrapping() -> None:
        wait_until(lambda: '"bootstrap"' in progress(broken), "bootstrap begins")
        broken.container("gpu-2").kill()
        killed_at.append(time.monotonic())

    killer = threading.Thread(target=kill_when_bootstrapping)
    killer.start()
    done = broken.up(check=False)
    ended_at = time.monotonic()
    killer.join()
    assert done.returncode != 0
    assert "gpu-2" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    failed_s = ended_at - killed_at[0]
    assert failed_s < UP_FAILS_WITHIN_S
    record(19, detect_s=failed_s)


@pytest.mark.fault(22)
def test_next_up_repairs_everything(broken: Stack) -> None:
    kill_at(broken, "the ready job runs", POINTS["the ready job runs"])
    began = time.monotonic()
    broken.up()
    record(22, recover_s=time.monotonic() - began)
    assert broken.ssh("controller", "srun -p gpu -N2 hostname | sort").splitlines() == ["gpu-1", "gpu-2"]
