"""The check of a machine after set-up: how long it waits until Slurm can use the node."""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace

import pytest

from bootstrap.errors import BootstrapError
from bootstrap.transport.base import Completed
from infra.targets.aws.node import check
from slurm.control.jobs import LEAVING
from slurm.power import findings
from tests.infra.targets.aws.node.clusters import EFS, desired, fixed

NODE = fixed("gpu-1", "compute", 11)
SWEEP_S = 60.0


DRAINED_AT = "2026-11-17T22:56:18"
BEFORE, AFTER = (datetime.fromisoformat(DRAINED_AT).timestamp() + offset for offset in (-1, 1))


class Machine:
    """A machine whose node is in service after some seconds; until then it has other flags, perhaps with a reason."""

    def __init__(self, in_service_s: float, reason: str, started: float = BEFORE, flags: str = "CLOUD+DRAIN") -> None:
        self.now, self.looks, self.resumed = 0.0, 0, 0
        self.in_service_s, self.reason, self.started, self.flags = in_service_s, reason, started, flags

    def run(self, script: str, **_options: object) -> Completed:
        if script == f"scontrol update nodename={NODE.name} state=RESUME":
            self.in_service_s, self.resumed = self.now, self.resumed + 1
            return Completed(0, "", "")
        self.looks += 1
        reason = f" Reason={self.reason} [root@{DRAINED_AT}]" if self.reason else ""
        state = "State=IDLE+CLOUD" if self.now >= self.in_service_s else f"State=IDLE+{self.flags}{reason}"
        return Completed(0, f"NodeName={NODE.name} {state}\nstarted\t{self.started:.0f}\n", "")

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def check_machine(monkeypatch: pytest.MonkeyPatch, in_service_s: float, reason: str) -> float:
    """Check a machine and return how long that took."""
    return run_check(monkeypatch, Machine(in_service_s, reason)).now


def run_check(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> Machine:
    monkeypatch.setattr(check, "time", SimpleNamespace(monotonic=lambda: machine.now, sleep=machine.sleep))
    check.check_machine(machine, NODE, desired(EFS))
    return machine


def test_a_node_that_replaces_another_one_waits_until_the_sweep_returns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    returned_s = findings._RETURN_S + 2 * SWEEP_S
    assert check_machine(monkeypatch, returned_s, LEAVING) == pytest.approx(returned_s, abs=check.LEAVING_PAUSE_S)
    with pytest.raises(BootstrapError, match=f"drain, reason: {LEAVING}"):
        check_machine(monkeypatch, float("inf"), LEAVING)


def test_nodes_that_wait_for_the_sweep_look_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes that were replaced look at the same time."""
    assert run_check(monkeypatch, Machine(300, LEAVING)).looks <= 61
    assert run_check(monkeypatch, Machine(20, "muster: set-up failed")).looks == 41


@pytest.mark.parametrize("flags", ["CLOUD+POWERED_DOWN", "CLOUD+NOT_RESPONDING+POWERING_UP", "CLOUD+POWERING_UP"])
def test_a_machine_waits_until_its_node_has_registered(monkeypatch: pytest.MonkeyPatch, flags: str) -> None:
    machine = run_check(monkeypatch, Machine(5, "", flags=flags))
    assert machine.now == pytest.approx(5, abs=check.PAUSE_S)
    with pytest.raises(BootstrapError, match=r"Slurm shows the node as idle\+cloud\+.*power"):
        run_check(monkeypatch, Machine(check.RETRY_FOR_S + 10, "", flags=flags))


def test_other_drains_are_reported_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BootstrapError, match="reason: muster: set-up failed"):
        check_machine(monkeypatch, check.RETRY_FOR_S + 10, "muster: set-up failed")


def test_a_node_that_is_newer_than_its_drain_returns_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = run_check(monkeypatch, Machine(300, LEAVING, AFTER))
    assert (machine.now, machine.resumed) == (0.0, 1)


@pytest.mark.parametrize(("name", "started"), [("gpu-1", BEFORE), ("gpu-1", 0.0), ("gpu-3", AFTER)])
def test_a_node_that_may_be_about_to_leave_waits_for_the_sweep(
    monkeypatch: pytest.MonkeyPatch, name: str, started: float
) -> None:
    """gpu-3 is not one of the two static nodes: Slurm may have launched it when `up` was about to remove it."""
    monkeypatch.setattr(f"{__name__}.NODE", fixed(name, "compute", 11))
    machine = run_check(monkeypatch, Machine(300, LEAVING, started))
    assert (machine.now >= 300, machine.resumed) == (True, 0)


def test_a_drain_of_others_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_check(monkeypatch, Machine(20, "muster: set-up failed", AFTER)).resumed == 0
