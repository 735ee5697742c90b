"""Once a minute: what Slurm believes and what EC2 has are made to agree, and unfinished work is finished."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import replace

from slurm.hostlist import hostlist
from slurm.power import breaker, ceiling, journal, topology, topology_file
from slurm.power.bring_up import Want, bring_up
from slurm.power.errors import Refused
from slurm.power.failed_set_up import failed_set_ups
from slurm.power.findings import Finding, Rule, ripe
from slurm.power.instances import Found, find
from slurm.power.node_names import group_of
from slurm.power.orphans import orphans
from slurm.power.patience import mark_down, members, settle
from slurm.power.program import Desk, log, run
from slurm.power.reasons import BUDGET, UNWANTED
from slurm.power.replace import replacements, to_start
from slurm.power.slurmctld import PowerNode
from slurm.power.terminate import terminate

_SINCE, _WORKING, _TO_READ = "since", "working", "to-read"

Nodes = dict[str, PowerNode]


def sweep(desk: Desk) -> list[Finding]:
    """What it acted upon."""
    with desk.memory.lock():
        nodes, found = desk.slurmctld.nodes(), find(desk.cloud, desk.fleet)
        static = desk.slurmctld.never_suspended()
        waiting = _finish(desk, found, nodes, static)
        stopped = _hold_the_ceiling(desk, nodes)
        held_back = stopped | _of_closed_groups(desk, found, nodes)
        findings = [
            *orphans(found, nodes, static),
            *replacements(found, nodes, waiting),
            *_failed_set_ups(desk, found, nodes),
            *to_start(found, nodes, static, held_back),
        ]
        due, since = ripe(findings, desk.memory.load(_SINCE), desk.now())
        desk.memory.keep(_SINCE, since)
        _act(desk, found, due)
        _watch_the_breaker(desk, found, nodes)
        _keep_topology(desk, found, nodes)
    # Without the lock: slurmctld first waits for its programs to end, and these wait for the lock.
    if desk.memory.load(_TO_READ):
        desk.slurmctld.reconfigure()
        desk.memory.keep(_TO_READ, {})
    return due


def _finish(desk: Desk, found: Found, nodes: Nodes, static: Collection[str]) -> Collection[str]:
    """What a killed resume left, or one that found a shortage; nodes that Slurm no longer waits for are none of it.
    The names that are still waited for."""
    coming = {name for name, node in nodes.items() if node.coming and not node.away}
    left = [replace(one, unit=tuple(n for n in one.unit if n in coming)) for one in journal.unfinished(desk.memory)]
    wants = [want for want in left if any(nodes[name].busy or name in static for name in want.unit)]
    # Their jobs were cancelled meanwhile: the dearest machines there are would be launched for nobody.
    # Down first: Slurm powers no node down that it is powering up.
    mark_down(desk, dict.fromkeys(sorted(set(members(left)) - set(members(wants))), UNWANTED))
    again: list[Want] = []
    if wants:
        log.info("%s: asked for and not there, launched now", hostlist(members(wants)))
        again = settle(desk, wants, bring_up(desk, found, wants))
    journal.rewrite(desk.memory, again)
    return members(again)


def _hold_the_ceiling(desk: Desk, nodes: Nodes) -> set[str]:
    """GPU nodes that must not be started just to be there."""
    try:
        spending = ceiling.spending(desk.cloud, desk.fleet, desk.memory, desk.now())
    except Refused as refused:
        # The rest of the sweep is worth more than this look.
        log.info("the budget could not be read: %s", refused)
        return set()
    if spending is None or not spending.over:
        return set()
    idle = ceiling.to_stop(nodes.values())
    if idle:
        log.info("%s: stopped, idle while %s", hostlist(idle), spending)
        desk.slurmctld.set_nodes(idle, "POWER_DOWN", f"{BUDGET}{spending}")
    return {name for name, node in nodes.items() if node.gpus}


def _failed_set_ups(desk: Desk, found: Found, nodes: Nodes) -> list[Finding]:
    try:
        return list(failed_set_ups(desk.cloud, desk.fleet.cluster, found, nodes))
    except Refused as refused:
        log.info("the nodes' reports could not be read: %s", refused)
        return []


def _of_closed_groups(desk: Desk, found: Found, nodes: Nodes) -> set[str]:
    counts = desk.memory.load(breaker.NAME)
    closed = found.closed | {group for group, count in counts.items() if count["closed"]}
    return {name for name in nodes if group_of(name) in closed}


def _act(desk: Desk, found: Found, due: Sequence[Finding]) -> None:
    for finding in due:
        log.info("%s: %s: %s", finding.rule, finding.subject, finding.why)
    gone = _subjects(due, "orphan")
    terminate(desk.cloud, [machine for machine in found.machines if machine.id in gone])
    failed = [*_subjects(due, "never-came"), *_subjects(due, "failed-set-up")]
    if failed:
        breaker.failed(desk.memory, failed)
    for rule in ("lost", "never-came", "failed-set-up"):
        mark_down(desk, {one.subject: one.why for one in due if one.rule == rule})
    desk.slurmctld.set_nodes(_subjects(due, "replace"), "POWER_DOWN")
    desk.slurmctld.set_nodes(_subjects(due, "start"), "POWER_UP")


def _subjects(due: Sequence[Finding], rule: Rule) -> list[str]:
    return [one.subject for one in due if one.rule == rule]


def _watch_the_breaker(desk: Desk, found: Found, nodes: Nodes) -> None:
    working = {m.id: m.group for m in found.machines if m.name in nodes and nodes[m.name].works}
    before = desk.memory.load(_WORKING)
    came_up = {group for machine, group in working.items() if machine not in before}
    desk.memory.keep(_WORKING, working)
    partitions = desk.slurmctld.partitions()
    counts = breaker.settled(
        desk.memory.load(breaker.NAME), came_up, [name for name, state in partitions.items() if state == "UP"]
    )
    for group in breaker.to_close(counts):
        log.error("%s: closed, %d nodes in a row did not come up", group, counts[group]["failures"])
        desk.slurmctld.set_partition(group, "DOWN")
        counts = breaker.closed(counts, group)
    desk.memory.keep(breaker.NAME, counts)


def _keep_topology(desk: Desk, found: Found, nodes: Nodes) -> None:
    try:
        changed = topology.refresh(desk.cloud, desk.memory, desk.etc, found.machines, nodes.keys())
    except Refused as refused:
        # The file as it is stays right for the nodes it knows; a daemon that is to read it again must still do so.
        log.info("the places of the nodes could not be read: %s", refused)
        return
    if changed:
        log.info("topology.conf: written anew")
        desk.memory.keep(_TO_READ, {topology_file.NAME: True})


def main() -> int:
    return run("sweep", sweep)


if __name__ == "__main__":
    sys.exit(main())
