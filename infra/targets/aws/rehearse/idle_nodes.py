"""Scenario of a rehearsal in which nodes have nothing to do: Slurm releases them, and they cost nothing any more."""

from __future__ import annotations

import time

from cluster.names import members
from cluster.plural import format_count
from infra.engine.stop import FAILED, Stop
from infra.targets.aws.rehearse.instance import Instance
from infra.targets.aws.rehearse.rehearsal import Rehearsal, choose_group

IDLE_S = 60
"""Idle time after which a node is released: the least that a spec may have. It is not shortened."""
# slurmctld looks for idle nodes at intervals, and shows a node as powered down after SuspendTimeout (120 s).
_RELEASED_S = 240.0
# The end of a job is seen a little later than Slurm sees it.
_EARLY_S = 5.0


def release_idle_nodes(rehearsal: Rehearsal) -> None:
    """Run a job, leave its nodes idle until Slurm releases them, and run another one, which launches them again."""
    rehearsal.rehearsed.change_section("slurm", suspend_s=IDLE_S)
    rehearsal.up()
    billed = set(rehearsal.cloud.moto_account.list_billed())
    group, nodes = choose_group(rehearsal.rehearsed.spec, rehearsal.rehearsed.nodes)
    rehearsal.run_job(group, nodes)
    ended_at = time.monotonic()
    machines = [rehearsal.cloud.instances.require(name) for name in members(group, nodes)]
    _wait_for_shutdown(rehearsal, machines)
    idle_s = time.monotonic() - ended_at
    if idle_s < IDLE_S - _EARLY_S:
        raise Stop(f"a node was released after {idle_s:.0f} s without a job, not after {IDLE_S} s", code=FAILED)
    for name in members(group, nodes):
        rehearsal.slurm.wait_for_node(name, "is powered down", lambda node: node.powered_down, _RELEASED_S)
    rehearsal.cloud.instances.wait_for_ends(_RELEASED_S)
    if problem := find_cost(machines, billed, rehearsal.cloud.moto_account.list_billed()):
        raise Stop(f"idle nodes are released, but {problem}", code=FAILED)
    idle = format_count(nodes, "idle node")
    rehearsal.console.say(f"{idle} terminated {idle_s:.0f} s after the job (suspend_s: {IDLE_S})")
    rehearsal.run_job(group, nodes)
    again = {rehearsal.cloud.instances.require(name).id for name in members(group, nodes)}
    if reused := again & {machine.id for machine in machines}:
        raise Stop(f"the next job ran on machines that were released: {', '.join(sorted(reused))}", code=FAILED)


def find_cost(machines: list[Instance], before: set[str], after: list[str]) -> str:
    """Return what is still paid for nodes that were released; empty if nothing.

    `before` is what was billed by the hour before they were launched, `after` what is billed now.
    """
    running = [f"{machine.name} ({machine.id})" for machine in machines if machine.raw._state.name != "terminated"]
    added = sorted(set(after) - before)
    return " and ".join(
        [*(f"{machine} is not terminated" for machine in running), *(f"{what} is still billed" for what in added)]
    )


def _wait_for_shutdown(rehearsal: Rehearsal, machines: list[Instance]) -> None:
    """Wait until the first machine is terminated by Slurm; raise Stop if that does not happen."""
    limit_s = IDLE_S + _RELEASED_S
    deadline = time.monotonic() + limit_s
    while not any(machine.is_ending for machine in machines):
        if time.monotonic() > deadline:
            states = ", ".join(f"{machine.name}: {rehearsal.slurm.read_node(machine.name)}" for machine in machines)
            raise Stop(f"no idle node was released after {limit_s:.0f} s: {states}", code=FAILED)
        time.sleep(0.5)
