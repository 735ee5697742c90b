"""After a SIGKILL or a lost state file, the next `up` repairs the cluster, and no process is left."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import docker
import pytest

from tests.engine.conftest import MakeMachines
from tests.engine.machines import Machines

STARTED, CREATED = '"start"', '"detail": "10.'
NODES = {"controller", "gpu-1", "gpu-2"}


@pytest.fixture(scope="module")
def built(make: MakeMachines) -> Machines:
    return make("heal")


def processes_of(machines: Machines) -> list[str]:
    """Return the command lines of processes with the stack's environment; plugins have their own process groups."""
    mark = f"MUSTER_HOME={machines.home}".encode()
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                lines.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return lines


def read_progress(machines: Machines) -> str:
    file = machines.home / "progress.jsonl"
    return file.read_text() if file.exists() else ""


def kill_when(machines: Machines, marker: str, count: int) -> None:
    """Start an `up` and kill only the Pulumi CLI once the progress file contains `marker` `count` times."""
    (machines.home / "progress.jsonl").unlink(missing_ok=True)
    machines.env["MUSTER_PROGRESS"] = str(machines.home / "progress.jsonl")
    process = machines.start("up", "--yes", "--skip-preview", "--refresh", "--suppress-outputs")
    while read_progress(machines).count(marker) < count:
        if marker == CREATED and process.poll() == 0:
            return  # The earlier runs had recorded some nodes, so this one created fewer than `count`.
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()


def assert_stopped(machines: Machines) -> None:
    """Assert that the processes of a killed run end by themselves and create nothing more."""
    # A starting plugin notices only later that its engine is gone, and other test layers use the CPUs too.
    deadline = time.monotonic() + 240
    while processes_of(machines):
        assert time.monotonic() < deadline, processes_of(machines)
        time.sleep(0.05)
    # Docker may still finish requests that it received before.
    assert wait_for_stable_leftovers(machines, time.monotonic() + 240), machines.leftovers()


def wait_for_stable_leftovers(machines: Machines, deadline: float) -> bool:
    before = machines.leftovers()
    while time.monotonic() < deadline:
        time.sleep(1)
        now = machines.leftovers()
        if now == before:
            return True
        before = now
    return False


@pytest.mark.fault(22)
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(((STARTED, 1), (STARTED, 3), (CREATED, 1), (CREATED, 2)), id="four", marks=pytest.mark.nightly),
        pytest.param(((STARTED, 3), (CREATED, 2)), id="two"),
    ],
)
def test_up_recovers_after_repeated_kills_without_leftover_processes(
    built: Machines, kills: tuple[tuple[str, int], ...]
) -> None:
    if built.containers():
        built.destroy()
    for marker, count in kills:
        kill_when(built, marker, count)
        assert_stopped(built)
        built.pulumi("cancel", "--yes")
    built.up()
    assert set(built.containers()) == NODES
    running = {name: identity for name, (identity, _) in built.containers().items()}
    assert {name: node["machine_id"] for name, node in built.nodes.items()} == running


def test_half_created_container_is_replaced(built: Machines) -> None:
    before = built.containers()
    api = docker.APIClient()
    broken = api.inspect_container(before["gpu-1"][0])
    api.remove_container(broken["Id"], force=True)
    half = api.create_container(
        broken["Config"]["Image"], name=broken["Name"].lstrip("/"), labels=broken["Config"]["Labels"]
    )
    built.up()
    after = built.containers()
    assert after["gpu-1"][0] not in (broken["Id"], half["Id"])
    assert {n: after[n] for n in ("controller", "gpu-2")} == {n: before[n] for n in ("controller", "gpu-2")}


def test_lost_state_file_existing_machines_are_adopted(built: Machines) -> None:
    before, nodes = built.containers(), built.nodes
    built.state_file.unlink()
    built.pulumi("stack", "init", "--no-select")
    built.up()
    assert built.containers() == before
    assert built.nodes == nodes
    built.up("--expect-no-changes")


def test_lost_state_file_machines_are_removed_by_label(built: Machines) -> None:
    built.state_file.unlink()
    kinds = [left.split()[0] for left in built.leftovers()]
    assert kinds[:5] == ["container", "container", "container", "network", "volume"]
    built.remove_by_label()
    assert built.leftovers() == []


@pytest.mark.fault(23)
def test_destroy_right_after_a_killed_up(built: Machines) -> None:
    """Nodes that were created but not recorded are removed together with their network."""
    built.pulumi("stack", "init", "--no-select")
    kill_when(built, STARTED, 3)
    assert_stopped(built)
    built.pulumi("cancel", "--yes")
    built.destroy()
    assert built.leftovers() == []
