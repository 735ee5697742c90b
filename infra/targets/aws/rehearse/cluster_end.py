"""Scenario of a rehearsal in which nobody removes a cluster whose spec has an end: its machines end themselves."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from cluster.plural import format_count
from infra.engine.stop import FAILED, Stop
from infra.targets.aws.rehearse.disks import run_in
from infra.targets.aws.rehearse.instance import Instance
from infra.targets.aws.rehearse.rehearsal import Rehearsal, choose_group
from infra.targets.aws.spec import END_FORMAT

SERVICE = "muster-cluster-end"
UNIT = f"/etc/systemd/system/{SERVICE}.service"
"""Unit of every machine with its end, in seconds since 1970."""
_END = "^Environment=ENDS_AT="
# Later than any rehearsal ends; it is brought forward once everything runs.
_LIFE = timedelta(hours=12)
# Machines look at their clock every 5 s, and take up to a minute to shut down.
_END_S = 240.0
_POLL_S = 1.0


def wait_for_own_end(rehearsal: Rehearsal) -> None:
    """Create a cluster with an end, leave it alone with a running job, and let the end come."""
    end = (datetime.now(UTC) + _LIFE).replace(second=0, microsecond=0)
    rehearsal.rehearsed.change_section("aws", ends_at=end.strftime(END_FORMAT))
    rehearsal.up()
    group, nodes = choose_group(rehearsal.rehearsed.spec, rehearsal.rehearsed.nodes)
    job = rehearsal.slurm.submit(group, nodes, "sleep 3600")
    rehearsal.slurm.wait_for_state(job, "RUNNING")
    instances = rehearsal.cloud.instances
    machines = [instance for instance in instances.by_id.values() if not instance.is_ending]
    for machine in machines:
        written = run_in(instances.container(machine.id), rf"sed -n 's/{_END}\([0-9]*\) .*/\1/p' {UNIT}").strip()
        if written != f"{end.timestamp():.0f}":
            raise Stop(f"{machine.name} ends at {written or 'no time'}, not at {end.timestamp():.0f}", code=FAILED)
    # Only the time is brought forward; what the machines do then is their own.
    for machine in machines:
        change = f'sed -i "/{_END}/s/ENDS_AT=[0-9]*/ENDS_AT=$(date +%s)/" {UNIT}'
        restart = f"systemctl daemon-reload && systemctl restart --no-block {SERVICE}"
        run_in(instances.container(machine.id), f"{change} && {restart}")
    _wait_for_ends(rehearsal, machines)
    # `teardown` has to work after the end, too.
    passed = datetime.now(UTC) - timedelta(minutes=5)
    rehearsal.rehearsed.change_section("aws", ends_at=passed.strftime(END_FORMAT))
    ended = format_count(len(machines), "machine")
    rehearsal.console.say(f"{ended} ended without a teardown: {', '.join(m.name for m in machines)}")


def _wait_for_ends(rehearsal: Rehearsal, machines: list[Instance]) -> None:
    """Wait until nothing runs; raise Stop if a machine is left, was only stopped, or was launched after the end."""
    deadline = time.monotonic() + _END_S
    while left := [m for m in rehearsal.cloud.instances.by_id.values() if m.raw._state.name != "terminated"]:
        if time.monotonic() > deadline:
            states = ", ".join(f"{machine.name} is {machine.raw._state.name}" for machine in left)
            raise Stop(f"{_END_S:.0f} s after the end of the cluster {states}", code=FAILED)
        time.sleep(_POLL_S)
    if later := set(rehearsal.cloud.instances.by_id) - {machine.id for machine in machines}:
        raise Stop(f"{', '.join(sorted(later))} were launched after the end of the cluster", code=FAILED)
