"""Bring up requested nodes: reuse machines that are already starting, launch the others, publish their names.

A launch option without capacity is skipped for a while, and a shortage is retried before it is reported to Slurm.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slurm.hostlist import hostlist
from slurm.power import limits
from slurm.power.context import Context, log
from slurm.power.launcher import TRANSIENT, Machine, MachineList, Option, Shortage, Unit
from slurm.power.reasons import BUDGET, CLOSED, HELD, REMOVED, no_capacity
from slurm.power.requests import NodeRequest, list_nodes

# A younger machine is still booting; a program that was killed, or `muster up`, launched it for the same request.
YOUNG_S = 600.0
COOLDOWN_S = 180.0
"""How long an option that had no capacity is skipped, as in Karpenter."""
# Faults that another call within minutes would cause again.
_COOLED = ("shortage", "quota")
_COOLDOWN = "cooldown"


@dataclass
class BringUpResult:
    """The result of bringing up requested nodes."""

    up: dict[str, Machine] = field(default_factory=dict)
    down: dict[str, str] = field(default_factory=dict)
    """Nodes for which there is no machine, with the reason."""
    retryable: set[str] = field(default_factory=set)
    """Nodes of `down` for which a later attempt may succeed."""
    held: set[str] = field(default_factory=set)
    """Nodes of `down` whose launch waits for the end of an upgrade."""


def bring_up(context: Context, existing: MachineList, requests: Sequence[NodeRequest]) -> BringUpResult:
    """Bring up as many requests as possible, each with all of its nodes or none."""
    young = _take_over(context, existing, requests)
    result = BringUpResult(up=dict(young))
    for zone, group in sorted({(request.zone, request.group) for request in requests}):
        units = [
            _without(request.nodes, young) for request in requests if (request.zone, request.group) == (zone, group)
        ]
        units = [unit for unit in units if unit]
        if units and group in existing.closed:
            result.down |= dict.fromkeys((name for unit in units for name in unit), REMOVED)
        elif units and group in existing.held:
            result.down |= dict.fromkeys((name for unit in units for name in unit), HELD)
            result.held |= {name for unit in units for name in unit}
        elif units and group in limits.list_closed_groups(context.memory.load(limits.BREAKER)):
            # A job in another partition over the same nodes would launch them again.
            result.down |= dict.fromkeys((name for unit in units for name in unit), CLOSED)
        elif units:
            _launch(context, prefer_zone(context.launcher.group(group).options, zone), units, result)
    for reason in dict.fromkeys(result.down.values()):
        log.info("%s: not launched, %s", hostlist(n for n, why in result.down.items() if why == reason), reason)
    if result.up:
        context.launcher.publish_names({name: machine.address for name, machine in result.up.items()})
    return result


def report_down(context: Context, requests: Sequence[NodeRequest], result: BringUpResult) -> list[NodeRequest]:
    """Mark nodes without a machine as down, except those of requests to retry, and return these requests."""
    retried = [request for request in requests if _may_be_retried(context, request, result)]
    if retried:
        log.info("%s: retried for a while", hostlist(sorted(list_nodes(retried))))
    waiting = list_nodes(retried)
    mark_down(context, {name: reason for name, reason in result.down.items() if name not in waiting})
    return retried


def mark_down(context: Context, reasons: Mapping[str, str]) -> None:
    """Mark nodes as down: Slurm then requeues their jobs, and the sweep makes the nodes available again."""
    for reason in dict.fromkeys(reasons.values()):
        context.slurmctld.set_nodes([name for name, why in reasons.items() if why == reason], "DOWN", reason)


def prefer_zone(options: Sequence[Option], zone: str) -> list[Option]:
    """Return the options with those in `zone` first: EFA does not cross zones, so a job's nodes should share one."""
    return sorted(options, key=lambda option: option.zone != zone) if zone else list(options)


def skip_cooling(options: Sequence[Option], until: Mapping[str, float], now: float) -> list[Option]:
    """Return the options whose cooldown is over, given its end by option key."""
    return [option for option in options if until.get(option.key, 0.0) <= now]


def update_cooldown(until: Mapping[str, float], shortages: Iterable[Shortage], now: float) -> dict[str, float]:
    """Return the ends of cooldowns by option key, with the new ones and without those that are over."""
    fresh = {shortage.option.key: now + COOLDOWN_S for shortage in shortages if shortage.fault.kind in _COOLED}
    return {option: end for option, end in until.items() if end > now} | fresh


def _take_over(context: Context, existing: MachineList, requests: Sequence[NodeRequest]) -> Mapping[str, Machine]:
    """Return machines of these nodes that are still booting; terminate older ones, which Slurm no longer uses."""
    requested = list_nodes(requests)
    machines = {name: machine for name, machine in existing.by_name().items() if name in requested}
    young = {n: m for n, m in machines.items() if m.running and context.now() - m.launched < YOUNG_S}
    old = [machine for name, machine in machines.items() if name not in young]
    if old:
        ended = context.launcher.terminate(old)
        log.info("%s: terminated %s, left over from an earlier request", hostlist(m.name for m in old), ended)
    if young:
        log.info("%s: reusing a machine that is already starting", hostlist(young))
    return young


def _without(unit: Unit, young: Mapping[str, Machine]) -> Unit:
    return tuple(name for name in unit if name not in young)


def _launch(context: Context, options: Sequence[Option], units: Sequence[Unit], result: BringUpResult) -> None:
    until = context.memory.load(_COOLDOWN)
    launched = context.launcher.launch(skip_cooling(options, until, context.now()), units, uuid.uuid4().hex)
    context.memory.save(_COOLDOWN, update_cooldown(until, launched.shortages, context.now()))
    for shortage in launched.shortages:
        log.info("%s: %s", shortage, shortage.fault)
    if launched.machines:
        zones = sorted({machine.zone for machine in launched.machines.values()})
        log.info("%s: launched in %s", hostlist(launched.machines), ", ".join(zones))
        result.up |= launched.machines
    if launched.missing:
        names = [name for unit in launched.missing for name in unit]
        reason = _over_budget(context, launched.shortages) or no_capacity(
            _list_availability(options, launched.shortages)
        )
        result.down |= dict.fromkeys(names, reason)
        # An option in its cooldown may have capacity again soon.
        skipped = len(launched.shortages) < len(options)
        if skipped or any(shortage.fault.kind in TRANSIENT for shortage in launched.shortages):
            result.retryable |= set(names)


def _over_budget(context: Context, shortages: Sequence[Shortage]) -> str:
    """Return a reason if the spent budget revoked the permission to launch; the target only reports a denied call."""
    spending = limits.last_spending(context.memory)
    refused = any(shortage.fault.kind == "permission" for shortage in shortages)
    return f"{BUDGET}{spending}, nothing is launched" if refused and spending and spending.over else ""


def _list_availability(options: Sequence[Option], shortages: Sequence[Shortage]) -> list[tuple[str, str]]:
    """Return the instance type and the availability of every option."""
    tried = {shortage.option.key for shortage in shortages}
    skipped = [option for option in options if option.key not in tried]
    return [
        *((shortage.option.instance_type, str(shortage)) for shortage in shortages),
        *((option.instance_type, f"{option.zone} {option.purchase} none recently") for option in skipped),
    ]


def _may_be_retried(context: Context, request: NodeRequest, result: BringUpResult) -> bool:
    """Return whether a later attempt may succeed in time; half of ResumeTimeout is reserved for the boot."""
    is_held = not result.held.isdisjoint(request.nodes)
    if not is_held and result.retryable.isdisjoint(request.nodes):
        return False
    limit_s = context.slurmctld.resume_timeout_s() / 2
    # `retry_s` limits how long a shortage is retried, not how long an upgrade may take.
    if not is_held:
        limit_s = min(limit_s, context.launcher.group(request.group).retry_s)
    return context.now() - request.since < limit_s
