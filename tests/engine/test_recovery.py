"""After a kill -9 or a lost state file, the next `up` makes the cluster whole, and nothing is left to itself."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import docker
import pytest

from tests.engine.conftest import MakeMachines
from tests.engine.machines import Machines

STARTED, MADE = '"start"', '"detail": "10.'
NODES = {"controller", "gpu-1", "gpu-2"}


@pytest.fixture(scope="module")
def built(make: MakeMachines) -> Machines:
    return make("heal")


def processes_of(machines: Machines) -> list[str]:
    """Command lines of what still runs in the stack's environment; plugins have process groups of their own."""
    mark = f"MUSTER_HOME={machines.home}".encode()
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                lines.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return lines


def events(machines: Machines) -> str:
    file = machines.home / "progress.jsonl"
    return file.read_text() if file.exists() else ""


def kill_when(machines: Machines, seen: str, count: int) -> None:
    """Starts an `up` and kills the Pulumi CLI, and only it, when `seen` stands `count` times in the progress file."""
    (machines.home / "progress.jsonl").unlink(missing_ok=True)
    machines.env["MUSTER_PROGRESS"] = str(machines.home / "progress.jsonl")
    process = machines.start("up", "--yes", "--skip-preview", "--refresh", "--suppress-outputs")
    while events(machines).count(seen) < count:
        if seen == MADE and process.poll() == 0:
            return  # what the run before had made was written down already: there was less to make than `count`
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()


def assert_silent(machines: Machines) -> None:
    """What the killed run started ends by itself, and makes nothing more."""
    # A plugin that was just starting comes up before it sees that nobody asks, and other layers work beside it.
    deadline = time.monotonic() + 60
    while processes_of(machines):
        assert time.monotonic() < deadline, processes_of(machines)
        time.sleep(0.05)
    # What the engine had been asked for before, it may still finish.
    assert settled(machines, time.monotonic() + 30), machines.leftovers()


def settled(machines: Machines, deadline: float) -> bool:
    before = machines.leftovers()
    while time.monotonic() < deadline:
        time.sleep(1)
        now = machines.leftovers()
        if now == before:
            return True
        before = now
    return False


def test_up_killed_again_and_again_leaves_no_process_and_is_healed_by_the_next(built: Machines) -> None:
    for seen, count in ((STARTED, 1), (STARTED, 3), (MADE, 1), (MADE, 2)):
        kill_when(built, seen, count)
        assert_silent(built)
        built.pulumi("cancel", "--yes")
    built.up()
    assert set(built.containers()) == NODES
    running = {name: identity for name, (identity, _) in built.containers().items()}
    assert {name: node["machine_id"] for name, node in built.nodes.items()} == running


def test_half_made_container_is_made_anew(built: Machines) -> None:
    before = built.containers()
    api = docker.APIClient()
    broken = api.inspect_container(before["gpu-1"][0])
    api.remove_container(broken["Id"], force=True)
    half = api.create_container("muster-node:24.11", name=broken["Name"].lstrip("/"), labels=broken["Config"]["Labels"])
    built.up()
    after = built.containers()
    assert after["gpu-1"][0] not in (broken["Id"], half["Id"])
    assert {n: after[n] for n in ("controller", "gpu-2")} == {n: before[n] for n in ("controller", "gpu-2")}


def test_lost_state_file_adopts_what_exists(built: Machines) -> None:
    before, nodes = built.containers(), built.nodes
    built.state_file.unlink()
    built.pulumi("stack", "init", "--no-select")
    built.up()
    assert built.containers() == before
    assert built.nodes == nodes
    built.up("--expect-no-changes")


def test_lost_state_file_can_be_removed_by_label(built: Machines) -> None:
    built.state_file.unlink()
    kinds = [left.split()[0] for left in built.leftovers()]
    assert kinds[:5] == ["container", "container", "container", "network", "volume"]
    built.remove_by_label()
    assert built.leftovers() == []


def test_killed_up_can_be_destroyed_at_once(built: Machines) -> None:
    """Nodes that were made but never written down go with the network they are on."""
    built.pulumi("stack", "init", "--no-select")
    kill_when(built, STARTED, 3)
    assert_silent(built)
    built.pulumi("cancel", "--yes")
    built.destroy()
    assert built.leftovers() == []
