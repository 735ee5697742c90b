"""The sweep, run every minute: resolve differences between Slurm and the cloud, and finish interrupted requests."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from cluster.names import group_of
from slurm.config import topology as topology_file
from slurm.control.nodes import NodeState
from slurm.hostlist import hostlist
from slurm.power import limits, topology
from slurm.power.bring_up import bring_up, mark_down, report_down
from slurm.power.context import Context, log
from slurm.power.findings import (
    Finding,
    Rule,
    find_failed_set_ups,
    find_orphans,
    find_replacements,
    find_to_return,
    find_to_start,
    list_been_up,
    select_due,
)
from slurm.power.launcher import LauncherError, MachineList
from slurm.power.reasons import BUDGET, UNWANTED
from slurm.power.requests import NodeRequest, list_nodes, load_unfinished, replace_unfinished

# Names of the values saved between sweeps.
_FIRST_SEEN, _WORKING, _TO_READ, _BEEN_UP = "since", "working", "to-read", "been-up"

# New nodes come up within minutes. If others follow without a pause, slurmctld must learn their places anyway.
_RECONFIGURE_DELAY_S = 600.0

Nodes = dict[str, NodeState]


def sweep(context: Context) -> list[Finding]:
    """Sweep once and return the findings that were acted on."""
    with context.memory.lock():
        nodes, existing = context.slurmctld.nodes(), context.launcher.list_machines()
        static = context.slurmctld.never_suspended()
        waiting = _finish_requests(context, existing, nodes, static)
        closed = _list_closed(context, existing, nodes)
        held_back = _enforce_budget(context, nodes) | closed
        held_back |= static - _update_been_up(context, existing, nodes, static)
        findings = [
            *find_orphans(existing, nodes, static),
            *find_replacements(existing, nodes, static, waiting),
            *_read_failed_set_ups(context, existing, nodes),
            *find_to_return(existing, nodes, static, closed),
            *find_to_start(existing, nodes, static, held_back),
        ]
        due, first_seen = select_due(findings, context.memory.load(_FIRST_SEEN), context.now())
        context.memory.save(_FIRST_SEEN, first_seen)
        _act(context, existing, nodes, due)
        _update_breaker(context, existing, nodes)
        _update_topology(context, existing, nodes)
    # The lock is not held: slurmctld waits for its programs to end before it reconfigures, and they wait for the lock.
    if is_reconfigure_due(context.memory.load(_TO_READ), nodes, context.now()):
        context.slurmctld.reconfigure()
        context.memory.save(_TO_READ, {})
    return due


def is_reconfigure_due(changed: Mapping[str, float], nodes: Nodes, now: float) -> bool:
    """Return whether slurmctld should read changed files now, given the time of each file's first unread change.

    A reconfigure ends the programs that wait for the nodes of jobs (slurm/control/wait_for_nodes.sh), and Slurm 26.05
    does not start them again. Jobs would then wait up to 30 s longer, so the reconfigure waits for their nodes instead.
    """
    job_waits = any(node.busy and node.powering_up for node in nodes.values())
    return any(not job_waits or now - since >= _RECONFIGURE_DELAY_S for since in changed.values())


def _finish_requests(context: Context, existing: MachineList, nodes: Nodes, static: Collection[str]) -> Collection[str]:
    """Finish requests of a resume that was killed or short of machines; return the nodes that are still requested."""
    starting = {name for name, node in nodes.items() if node.powering_up and not node.out_of_service}
    unfinished = [
        replace(request, nodes=tuple(name for name in request.nodes if name in starting))
        for request in load_unfinished(context.memory)
    ]
    requests = [request for request in unfinished if any(nodes[name].busy or name in static for name in request.nodes)]
    # The jobs of the other nodes were cancelled, so nothing is launched. The nodes are marked down before power down,
    # because Slurm does not power down a node that it is powering up.
    mark_down(context, dict.fromkeys(sorted(list_nodes(unfinished) - list_nodes(requests)), UNWANTED))
    retried: list[NodeRequest] = []
    if requests:
        log.info("%s: requested but missing, launching now", hostlist(sorted(list_nodes(requests))))
        retried = report_down(context, requests, bring_up(context, existing, requests))
    replace_unfinished(context.memory, retried)
    return list_nodes(retried)


def _enforce_budget(context: Context, nodes: Nodes) -> set[str]:
    """Stop idle GPU nodes if the budget is spent; return the nodes that must not be started as static nodes."""
    try:
        spending = limits.read_spending(context.launcher, context.memory, context.now())
    except LauncherError as error:
        # The other parts of the sweep matter more than this one.
        log.info("the budget could not be read: %s", error)
        return set()
    if spending is None or not spending.over:
        return set()
    idle = limits.list_idle_gpu_nodes(nodes)
    if idle:
        log.info("%s: stopped, idle while %s", hostlist(idle), spending)
        context.slurmctld.set_nodes(idle, "POWER_DOWN", f"{BUDGET}{spending}")
    return {name for name, node in nodes.items() if node.gpus}


def _read_failed_set_ups(context: Context, existing: MachineList, nodes: Nodes) -> list[Finding]:
    try:
        return list(find_failed_set_ups(context.launcher, existing, nodes))
    except LauncherError as error:
        log.info("the nodes' reports could not be read: %s", error)
        return []


def _list_closed(context: Context, existing: MachineList, nodes: Nodes) -> set[str]:
    """Return the nodes of groups that are being removed or upgraded, or whose partition the breaker closed."""
    counts = context.memory.load(limits.BREAKER)
    closed = existing.closed | existing.held | limits.list_closed_groups(counts)
    return {name for name in nodes if group_of(name) in closed}


def _update_been_up(context: Context, existing: MachineList, nodes: Nodes, static: Collection[str]) -> set[str]:
    """Return the static nodes that have been up, and save them if they changed."""
    before = context.memory.load(_BEEN_UP)
    been_up = list_been_up(existing, nodes, static, before)
    if been_up != before.keys():
        context.memory.save(_BEEN_UP, dict.fromkeys(sorted(been_up), True))
    return been_up


def _act(context: Context, existing: MachineList, nodes: Nodes, due: Sequence[Finding]) -> None:
    for finding in due:
        log.info("%s: %s: %s", finding.rule, finding.subject, finding.why)
    orphans = _list_subjects(due, "orphan")
    context.launcher.terminate([machine for machine in existing.machines if machine.id in orphans])
    failed = [*_list_subjects(due, "never-came"), *_list_subjects(due, "failed-set-up")]
    if failed:
        limits.count_failures(context.memory, failed)
    for rule in ("lost", "never-came", "failed-set-up"):
        mark_down(context, {finding.subject: finding.why for finding in due if finding.rule == rule})
    # Slurm does not power down a node that it is powering up, such as one whose machine is taken back during set-up.
    replaced = {finding.subject: finding.why for finding in due if finding.rule == "replace"}
    mark_down(context, {name: why for name, why in replaced.items() if nodes[name].powering_up})
    # A lost node has no machine to wait for. Its job waits two minutes for its old credential to expire, and Slurm as
    # long to power the node down: at the same time, if that begins now and not in the next sweep.
    context.slurmctld.set_nodes([*replaced, *_list_subjects(due, "lost")], "POWER_DOWN")
    context.slurmctld.set_nodes(_list_subjects(due, "return"), "RESUME")
    context.slurmctld.set_nodes(_list_subjects(due, "start"), "POWER_UP")


def _list_subjects(due: Sequence[Finding], rule: Rule) -> list[str]:
    return [finding.subject for finding in due if finding.rule == rule]


def _update_breaker(context: Context, existing: MachineList, nodes: Nodes) -> None:
    working = {m.id: m.group for m in existing.machines if m.name in nodes and nodes[m.name].is_up}
    before = context.memory.load(_WORKING)
    came_up = {group for machine, group in working.items() if machine not in before}
    context.memory.save(_WORKING, working)
    open_partitions = [name for name, state in context.slurmctld.partitions().items() if state == "UP"]
    counts = limits.reset_counts(context.memory.load(limits.BREAKER), came_up, open_partitions)
    for group in limits.list_groups_to_close(counts):
        log.error("%s: partition closed, %d consecutive nodes did not come up", group, counts[group]["failures"])
        context.slurmctld.set_partition(group, "DOWN")
        counts = limits.mark_closed(counts, group)
    context.memory.save(limits.BREAKER, counts)


def _update_topology(context: Context, existing: MachineList, nodes: Nodes) -> None:
    try:
        changed = topology.refresh(context, existing.machines, nodes.keys())
    except LauncherError as error:
        # The file stays valid for the nodes in it, and a reconfigure that is still due takes place.
        log.info("the nodes' places in the network could not be read: %s", error)
        return
    if changed:
        log.info("%s: updated", topology_file.NAME)
        # A reconfigure reads all changes, so its delay begins with the first.
        context.memory.save(_TO_READ, {topology_file.NAME: context.now()} | context.memory.load(_TO_READ))
