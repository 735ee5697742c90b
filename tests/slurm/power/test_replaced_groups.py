"""Groups whose machines were replaced: when their drained nodes return, and when they are left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm.control.jobs import EMPTYING, LEAVING
from slurm.power.context import Context
from slurm.power.findings import find_replacements, find_to_return
from slurm.power.launcher import MachineList
from slurm.power.programs import resume
from slurm.power.sweep import sweep
from tests.moto_server import Moto
from tests.slurm.power.cluster import Clock, FakeSlurm
from tests.slurm.power.states import COMING, DOWN, DRAINED, OFF, machine, node


@pytest.mark.parametrize(
    ("static", "closed", "grace_s"),
    [(True, True, None), (True, False, 60.0), (False, True, 0.0), (False, False, 0.0)],
    ids=["up replaces it", "its machine is not listed yet", "autoscaled, closed", "autoscaled"],
)
@pytest.mark.parametrize("state", [DRAINED, f"{DOWN}+DRAIN"])
def test_a_static_node_between_two_machines_is_not_powered_down(
    state: str, static: bool, closed: bool, grace_s: float | None
) -> None:
    """SuspendProgram runs seconds later and would end the machine that `up` has launched by then."""
    existing = MachineList((), closed=frozenset({"gpu"} if closed else ()))
    nodes = {"gpu-1": node(state, LEAVING)}
    graces = [finding.grace_s for finding in find_replacements(existing, nodes, ["gpu-1"] if static else ())]
    assert graces == ([] if grace_s is None else [grace_s])


@pytest.mark.parametrize(
    ("state", "reason", "has_machine", "returns"),
    [
        (f"{OFF}+DRAIN", LEAVING, False, True),
        (f"{OFF}+DRAIN", EMPTYING, False, False),
        (f"{OFF}+DRAIN", "mine, Ann", False, False),
        (OFF, "", False, False),
        (DRAINED, LEAVING, True, True),
        (DRAINED, LEAVING, False, False),
        (f"{DRAINED}+NOT_RESPONDING", LEAVING, True, False),
        (f"{DOWN}+DRAIN", LEAVING, True, False),
        (f"{COMING}+DRAIN", LEAVING, True, False),
        (DRAINED, "mine, Ann", True, False),
    ],
)
def test_a_node_returns_when_its_group_was_replaced(state: str, reason: str, has_machine: bool, returns: bool) -> None:
    """Slurm clears the drain of a node only when it powers the node down, which would end its new machine."""
    existing, nodes = MachineList((machine(),) if has_machine else ()), {"gpu-1": node(state, reason)}
    assert bool(list(find_to_return(existing, nodes, (), ()))) == returns
    assert list(find_to_return(existing, nodes, (), ["gpu-1"])) == []


@pytest.mark.parametrize(
    ("launched", "drained", "static", "state", "grace_s"),
    [
        (200.0, 100.0, True, DRAINED, 0),
        (100.0, 200.0, True, DRAINED, 180),
        (200.0, 0.0, True, DRAINED, 180),
        (200.0, 100.0, False, DRAINED, 180),
        (200.0, 100.0, True, f"{OFF}+DRAIN", 180),
    ],
    ids=["new machine", "machine is leaving", "time not known", "launched by Slurm", "not registered"],
)
def test_a_static_node_returns_at_once_if_its_machine_is_newer_than_its_drain(
    launched: float, drained: float, static: bool, state: str, grace_s: float
) -> None:
    existing = MachineList((machine(launched=launched),))
    nodes = {"gpu-1": replace(node(state, LEAVING), since=drained)}
    (finding,) = find_to_return(existing, nodes, ["gpu-1"] if static else (), ())
    assert finding.grace_s == grace_s


def test_a_node_of_a_replaced_group_is_resumed(context: Context, slurm: FakeSlurm, clock: Clock) -> None:
    slurm.states, slurm.reasons = {"gpu-1": f"{OFF}+DRAIN"}, {"gpu-1": LEAVING}
    assert sweep(context) == []
    clock.sleep(181)
    assert [finding.rule for finding in sweep(context)] == ["return"]
    assert slurm.commands == [["update", "nodename=gpu-1", "state=RESUME"]]


def test_a_replaced_static_node_is_resumed_by_the_first_sweep_that_sees_it_answer(
    aws: Moto, context: Context, slurm: FakeSlurm
) -> None:
    """Until then it is drained, and its machine is billed."""
    resume(context, ["gpu-1"], [])
    slurm.static, slurm.reasons, slurm.reason_time = "gpu-1", {"gpu-1": LEAVING}, "2020-11-15T10:00:00"
    slurm.states = {"gpu-1": f"{DRAINED}+NOT_RESPONDING"}
    assert sweep(context) == []
    slurm.states = {"gpu-1": DRAINED}
    assert [finding.rule for finding in sweep(context)] == ["return"]
    assert slurm.commands == [["update", "nodename=gpu-1", "state=RESUME"]]
