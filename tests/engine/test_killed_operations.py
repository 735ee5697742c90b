"""`up` and `destroy` are killed at every operation of Pulumi in turn; the next run completes, and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from infra.engine import supervisor
from tests.engine.conftest import MakeMachines
from tests.engine.machines import Machines
from tests.engine.test_recovery import NODES, assert_stopped

UP = ("up", "--yes", "--skip-preview", "--refresh", "--suppress-outputs")
DESTROY = ("destroy", "--yes", "--skip-preview", "--suppress-outputs")
UNCHANGED = ("same", "refresh", "read")
# Three machines and the network are the least that a cluster consists of.
LEAST_OPERATIONS = 4


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.fault(22, 23)
def test_a_kill_at_every_operation_of_up_and_destroy_leaves_nothing(make: MakeMachines) -> None:
    machines = make("every")
    # The flag for the event log is one of Pulumi's commands for debugging.
    machines.env["PULUMI_DEBUG_COMMANDS"] = "true"
    killed = dict.fromkeys(("up", "destroy"), 0)
    number = 0
    while number < LEAST_OPERATIONS or number in killed.values():
        number += 1
        if kill_at_operation(machines, number, *UP):
            killed["up"] = number
        machines.up()
        running = {name: identity for name, (identity, _) in machines.containers().items()}
        assert {name: node["machine_id"] for name, node in machines.nodes.items()} == running, number
        assert set(running) == NODES, number
        if kill_at_operation(machines, number, *DESTROY):
            killed["destroy"] = number
        machines.destroy()
        assert machines.leftovers() == [], number
    print(f"killed at {killed['up']} operations of up and {killed['destroy']} of destroy")
    assert min(killed.values()) >= LEAST_OPERATIONS


def kill_at_operation(machines: Machines, number: int, *command: str) -> bool:
    """Run a command and kill Pulumi as soon as it begins this operation; return whether that ended it early.

    It does not if there are fewer operations, or if Pulumi was done before the kill reached it.
    """
    log, output = machines.home / "events.json", machines.home / "output.log"
    log.unlink(missing_ok=True)
    # As `muster` starts it: what remains of a killed Pulumi is ended.
    through = (sys.executable, supervisor.__file__, str(output))
    process = machines.start(*command, "--event-log", str(log), through=through)
    while count_operations(log) < number:
        if process.poll() is not None:
            assert process.returncode == 0, output.read_text()
            return False
        time.sleep(0.005)
    with suppress(FileNotFoundError, ProcessLookupError):
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)
    process.communicate(timeout=60)
    assert_stopped(machines)
    if process.returncode == 0:
        return False
    assert process.returncode == -signal.SIGKILL % 256, output.read_text()
    machines.pulumi("cancel", "--yes")
    return True


def count_operations(log: Path) -> int:
    """Return how many resources Pulumi has begun to create, change or delete, according to its event log."""
    if not log.exists():
        return 0
    # The last line may still be written.
    events = [json.loads(line) for line in log.read_text().split("\n")[:-1] if line]
    begun = [event["resourcePreEvent"]["metadata"]["op"] for event in events if "resourcePreEvent" in event]
    return sum(operation not in UNCHANGED for operation in begun)
