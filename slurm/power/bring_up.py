"""Names in, machines out: what exists is taken over, the rest launched, all published; what is missing says why."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.inventory import LaunchOption
from slurm.hostlist import hostlist
from slurm.power import ceiling, cooldown, dns
from slurm.power.errors import PASSING
from slurm.power.instances import Found, Instance
from slurm.power.launch import Shortage, Unit, group_named, launch
from slurm.power.node_names import group_of
from slurm.power.program import Desk, log
from slurm.power.reasons import BUDGET, REMOVED, capacity
from slurm.power.terminate import terminate

# A machine of that age still boots: a program that was killed, or `muster up`, started it for the same request.
YOUNG_S = 600.0
_COOLDOWN = "cooldown"


@dataclass(frozen=True)
class Want:
    """Nodes of one group that are of use only together, and the zone where their job already has nodes."""

    unit: Unit
    zone: str = ""
    since: float = 0.0
    """When Slurm asked for them."""

    @property
    def group(self) -> str:
        return group_of(self.unit[0])


@dataclass
class Outcome:
    up: dict[str, Instance] = field(default_factory=dict)
    down: dict[str, str] = field(default_factory=dict)
    """Nodes that cannot be had, with the reason."""
    passing: set[str] = field(default_factory=set)
    """Of these, those that a later try may bring."""


def bring_up(desk: Desk, found: Found, wants: Sequence[Want]) -> Outcome:
    young = _young(desk, found, wants)
    outcome = Outcome(up=dict(young))
    for zone, group in sorted({(want.zone, want.group) for want in wants}):
        units = [_rest(want, young) for want in wants if (want.zone, want.group) == (zone, group)]
        units = [unit for unit in units if unit]
        if units and group in found.closed:
            outcome.down |= dict.fromkeys((name for unit in units for name in unit), REMOVED)
        elif units:
            _launch(desk, in_zone_first(group_named(desk.fleet, group).options, zone), units, outcome)
    for reason in dict.fromkeys(outcome.down.values()):
        log.info("%s: not launched, %s", hostlist(n for n, why in outcome.down.items() if why == reason), reason)
    if outcome.up:
        dns.publish(desk.cloud, desk.fleet, {name: machine.address for name, machine in outcome.up.items()})
    return outcome


def in_zone_first(options: Sequence[LaunchOption], zone: str) -> list[LaunchOption]:
    """EFA does not cross zones: the rest of a job goes where its first nodes are, if it can."""
    return sorted(options, key=lambda option: option.zone != zone) if zone else list(options)


def _young(desk: Desk, found: Found, wants: Sequence[Want]) -> Mapping[str, Instance]:
    """Takes over machines that still boot; older ones, which Slurm has given up, make room."""
    named, wanted = found.named(), {name for want in wants for name in want.unit}
    there = {name: machine for name, machine in named.items() if name in wanted}
    young = {n: m for n, m in there.items() if m.running and desk.now() - m.launched < YOUNG_S}
    old = [machine for name, machine in there.items() if name not in young]
    if old:
        log.info("%s: ended %s, left over from before", hostlist(m.name for m in old), terminate(desk.cloud, old))
    if young:
        log.info("%s: taken over, started already", hostlist(young))
    return young


def _rest(want: Want, young: Mapping[str, Instance]) -> Unit:
    return tuple(name for name in want.unit if name not in young)


def _launch(desk: Desk, options: Sequence[LaunchOption], units: Sequence[Unit], outcome: Outcome) -> None:
    until = desk.memory.load(_COOLDOWN)
    result = launch(desk.cloud, desk.fleet, cooldown.usable(options, until, desk.now()), units, uuid.uuid4().hex)
    desk.memory.keep(_COOLDOWN, cooldown.remembered(until, result.failed, desk.now()))
    for one in result.failed:
        log.info("%s: %s", one, one.fault)
    if result.nodes:
        zones = sorted({machine.zone for machine in result.nodes.values()})
        log.info("%s: launched in %s", hostlist(result.nodes), ", ".join(zones))
        outcome.up |= result.nodes
    if result.missing:
        names = [name for unit in result.missing for name in unit]
        reason = _spent(desk, result.failed) or capacity(options[0].instance_type, _said(options, result.failed))
        outcome.down |= dict.fromkeys(names, reason)
        # One that was passed over had nothing lately, and may have something in a while.
        if len(result.failed) < len(options) or any(one.fault.kind in PASSING for one in result.failed):
            outcome.passing |= set(names)


def _spent(desk: Desk, failed: Sequence[Shortage]) -> str:
    """AWS takes the right to launch away with the money, and then says only that there is no right."""
    spending = ceiling.known(desk.memory)
    refused = any(one.fault.kind == "permission" for one in failed)
    return f"{BUDGET}{spending}, nothing is launched" if refused and spending and spending.over else ""


def _said(options: Sequence[LaunchOption], failed: Sequence[Shortage]) -> list[str]:
    tried = {cooldown.key(one.option) for one in failed}
    passed_over = [o for o in options if cooldown.key(o) not in tried]
    return [*map(str, failed), *(f"{o.zone} {o.purchase} none lately" for o in passed_over)]
