"""Differences between Slurm and the cloud: unused machines, nodes that need a new machine, nodes to start.

A node is replaced by powering it down: Slurm runs SuspendProgram, clears DOWN and DRAIN, and powers it up when a job
needs it. A static node is started again at once. A node that a person took out of service is left as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from cluster.names import group_of
from slurm.control.jobs import LEAVING
from slurm.control.nodes import NodeState
from slurm.health.drain import TRIED_PREFIX
from slurm.health.registry import may_reboot
from slurm.power.bring_up import COOLDOWN_S
from slurm.power.launcher import Launcher, Machine, MachineList
from slurm.power.limits import BUDGET_INTERVAL_S
from slurm.power.reasons import (
    BUDGET,
    CAPACITY,
    HEALTH,
    JOB_FAULTS,
    LOST,
    NEVER_CAME,
    SILENT,
    may_be_replaced,
    set_up_failed,
)

Rule = Literal["orphan", "lost", "never-came", "failed-set-up", "replace", "return", "start"]

Nodes = Mapping[str, NodeState]
"""Nodes as Slurm sees them, by name."""

_STOPPED_S = 60.0
# SuspendProgram may be about to terminate the machine.
_SUSPENDED_S = 300.0
# `muster up` launches static nodes before slurmctld knows them, and they take a while to boot.
_STARTING_S = 1800.0
# The cloud lists a new machine only some time after the call that launched it.
_LOST_S = 60.0
_NEVER_CAME_S = 180.0
# After a transient fault or network outage, the node recovers by itself within this time.
_RECOVERY_S = 300.0
# Two rounds after a reset, then a reboot, which takes large machines up to ten minutes.
_REMEDIES_S = 1200.0
_START_S = 60.0
# `up` drains the nodes that it will remove or replace some time before it ends their machines.
_RETURN_S = 180.0


@dataclass(frozen=True)
class Finding:
    """A difference between Slurm and the cloud."""

    rule: Rule
    subject: str
    """Name of a node, or id of a machine."""
    why: str
    grace_s: float
    """How long it must last before it is acted on, because Slurm and the cloud see a change at different times."""

    @property
    def key(self) -> str:
        return f"{self.rule} {self.subject}"


def select_due(
    findings: Iterable[Finding], since: Mapping[str, float], now: float
) -> tuple[list[Finding], dict[str, float]]:
    """Return the findings to act on now, and when each current finding was first seen, by key."""
    current = list(findings)
    first_seen = {finding.key: since.get(finding.key, now) for finding in current}
    return [finding for finding in current if now - first_seen[finding.key] >= finding.grace_s], first_seen


def find_orphans(existing: MachineList, nodes: Nodes, static: Collection[str]) -> Iterator[Finding]:
    """Yield machines of the cluster that no node uses, but that cost money."""
    owners = _find_owners(existing, nodes)
    for machine in existing.machines:
        node = nodes.get(machine.name)
        if not machine.running:
            yield Finding("orphan", machine.id, "it was stopped, and nothing starts it again", _STOPPED_S)
        elif not machine.name:
            yield Finding("orphan", machine.id, "it has no name", _SUSPENDED_S)
        elif node is None:
            yield Finding("orphan", machine.id, f"Slurm has no node {machine.name}", _STARTING_S)
        elif (owner := owners[machine.name]).id != machine.id:
            why = f"at {machine.address}, has the name of {machine.name}, which is {owner.id} at {owner.address}"
            yield Finding("orphan", machine.id, why, _STOPPED_S)
        elif node.powered_down:
            grace_s = _STARTING_S if machine.name in static else _SUSPENDED_S
            yield Finding("orphan", machine.id, f"Slurm has {machine.name} powered down", grace_s)


def find_replacements(
    existing: MachineList, nodes: Nodes, static: Collection[str] = (), waiting: Collection[str] = ()
) -> Iterator[Finding]:
    """Yield nodes that need a new machine, except those in `waiting`, whose machine is still being launched."""
    running = _list_running(existing)
    for name, node in nodes.items():
        if node.powered_off or name in waiting:
            continue
        leaves = node.reason.startswith(LEAVING)
        # Between the machines of such a node, `up` has ended one and is about to launch the other: to power the node
        # down would end that one.
        if leaves and name in static and group_of(name) in existing.closed:
            continue
        if node.out_of_service:
            if not node.busy and may_be_replaced(node.reason) and not _returns(node, name in running):
                grace_s = _choose_grace(node.reason)
                if leaves and name in running:
                    # This machine is a new one, which may still be starting.
                    grace_s = _STARTING_S
                elif leaves and name in static:
                    # `up` may have launched a machine that is not listed yet.
                    grace_s = _LOST_S
                yield Finding("replace", name, node.reason, grace_s)
        elif name not in running and node.powering_up:
            yield Finding("never-came", name, NEVER_CAME, _NEVER_CAME_S)
        elif name not in running:
            yield Finding("lost", name, LOST, _LOST_S)


def find_failed_set_ups(launcher: Launcher, existing: MachineList, nodes: Nodes) -> Iterator[Finding]:
    """Yield nodes whose machine reported that its set-up failed, so that jobs do not wait for the timeout."""
    machines = existing.by_name()
    starting = [n for n, node in nodes.items() if node.powering_up and not node.out_of_service and n in machines]
    for name, failure in launcher.read_set_up_failures(starting).items():
        # A report of an earlier machine of the same name is ignored.
        if failure.machine == machines[name].id:
            yield Finding("failed-set-up", name, set_up_failed(failure.step, failure.line), 0.0)


def find_to_return(
    existing: MachineList, nodes: Nodes, static: Collection[str], closed: Collection[str]
) -> Iterator[Finding]:
    """Yield nodes that are still drained for a change of their group, which is over; `closed` are being changed.

    To power them down would clear the drain too, but end machines that `muster up` has just launched.
    """
    machines = {name: machine for name, machine in existing.by_name().items() if machine.running}
    for name, node in nodes.items():
        if name not in closed and _returns(node, name in machines):
            replaced = name in static and not node.powered_down and _is_newer(machines[name], node)
            yield Finding("return", name, "its group is open again", 0.0 if replaced else _RETURN_S)


def find_to_start(
    existing: MachineList, nodes: Nodes, static: Collection[str], held_back: Collection[str]
) -> Iterator[Finding]:
    """Yield static nodes that are powered down, except those held back: by a closed group, the budget or `up`."""
    running = _list_running(existing)
    for name in sorted(static):
        node = nodes.get(name)
        available = node and node.powered_down and not node.out_of_service
        if available and name not in running and name not in held_back:
            yield Finding("start", name, "static nodes are always up", _START_S)


def list_been_up(existing: MachineList, nodes: Nodes, static: Collection[str], before: Collection[str]) -> set[str]:
    """Return the static nodes that are or were powered on with a machine; `before` is the result of an earlier call.

    The others are left to `muster up`, which launches all of them in one zone or none. Nodes of a group that is being
    removed are forgotten: a new group of that name starts like the first.
    """
    powered_on = {name for name, node in nodes.items() if not node.powered_off and not node.powering_up}
    been_up = {*before, *(powered_on & _list_running(existing))}
    return {name for name in static if name in been_up and group_of(name) not in existing.closed}


def _returns(node: NodeState, has_machine: bool) -> bool:
    """Return whether a node that was drained for a change can take jobs again, or can be launched."""
    is_drained = "DRAIN" in node.flags and node.reason.startswith(LEAVING)
    answers = has_machine and node.state != "DOWN" and not node.flags & {"NOT_RESPONDING"}
    return is_drained and not node.powering_up and (node.powered_down or answers)


def _is_newer(machine: Machine, node: NodeState) -> bool:
    """Return whether a machine was launched after its node was drained.

    Only `muster up` launches a static node that is drained, so the drain was for the machine before. Another node may
    have been drained while Slurm was launching it, and `up` is about to end that machine.
    """
    return 0.0 < node.since < machine.launched


def _choose_grace(reason: str) -> float:
    if reason.startswith(CAPACITY):
        return COOLDOWN_S
    if reason.startswith(BUDGET):
        return BUDGET_INTERVAL_S
    if reason.startswith(HEALTH) and not reason.startswith(TRIED_PREFIX) and may_reboot(reason):
        return _REMEDIES_S
    return _RECOVERY_S if reason.startswith((HEALTH, SILENT, *JOB_FAULTS)) else 0.0


def _list_running(existing: MachineList) -> set[str]:
    return {name for name, machine in existing.by_name().items() if machine.running}


def _find_owners(existing: MachineList, nodes: Nodes) -> dict[str, Machine]:
    """Return the machine of each node; of two with the same name, the one whose address Slurm uses, else the older."""
    return existing.by_name() | {m.name: m for m in existing.machines if m.running and _is_address_of_node(m, nodes)}


def _is_address_of_node(machine: Machine, nodes: Nodes) -> bool:
    return machine.name in nodes and bool(machine.address) and nodes[machine.name].address == machine.address
