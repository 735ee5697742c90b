"""How long a shortage is retried before Slurm hears of it: the group's `capacity.retry_s`, from when Slurm asked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from slurm.hostlist import hostlist
from slurm.power.bring_up import Outcome, Want
from slurm.power.launch import group_named
from slurm.power.program import Desk, log


def settle(desk: Desk, wants: Sequence[Want], outcome: Outcome) -> list[Want]:
    """Those that are tried again: Slurm goes on waiting for their nodes. The nodes of the others go down."""
    again = [want for want in wants if outcome.passing.intersection(want.unit) and _patient(desk, want)]
    if again:
        log.info("%s: tried again for a while", hostlist(members(again)))
    kept = members(again)
    mark_down(desk, {name: why for name, why in outcome.down.items() if name not in kept})
    return again


def mark_down(desk: Desk, down: Mapping[str, str]) -> None:
    """Slurm then gives the jobs back to the queue; the sweep gives the nodes back to Slurm."""
    for reason in dict.fromkeys(down.values()):
        desk.slurmctld.set_nodes([name for name, why in down.items() if why == reason], "DOWN", reason)


def members(wants: Sequence[Want]) -> Collection[str]:
    return {name for want in wants for name in want.unit}


def _patient(desk: Desk, want: Want) -> bool:
    """Half of what Slurm waits is for the machine to boot."""
    most = min(group_named(desk.fleet, want.group).retry_s, desk.slurmctld.resume_timeout_s() / 2)
    return desk.now() - want.since < most
