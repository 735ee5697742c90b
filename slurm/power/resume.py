"""ResumeProgram: the nodes that jobs wait for, launched whole jobs at a time; what is not to be had is said."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm.hostlist import expand
from slurm.power.bring_up import Outcome, Want, bring_up
from slurm.power.instances import find
from slurm.power.journal import noted
from slurm.power.node_names import group_of
from slurm.power.patience import settle
from slurm.power.program import Desk, log, run


def resume(desk: Desk, nodes: Sequence[str], jobs: Sequence[Mapping[str, Any]]) -> Outcome:
    with desk.memory.lock():
        found = find(desk.cloud, desk.fleet)
        zones, now = {name: machine.zone for name, machine in found.named().items()}, desk.now()
        wants = [replace(want, since=now) for want in wanted(nodes, jobs, zones)]
        with noted(desk.memory, wants) as again:
            outcome = bring_up(desk, found, wants)
            again.extend(settle(desk, wants, outcome))
    return outcome


def wanted(nodes: Sequence[str], jobs: Sequence[Mapping[str, Any]], zones: Mapping[str, str]) -> list[Want]:
    """A want for each job and group; jobs that share a node share their fate. Nodes without a job come one by one."""
    units: list[tuple[set[str], str]] = []
    for job in jobs:
        members = [name for name in expand(str(job.get("nodes_resume") or "")) if name in nodes]
        standing = [zones[name] for name in expand(str(job.get("nodes_alloc") or "")) if name in zones]
        for group in dict.fromkeys(map(group_of, members)):
            _join(units, {name for name in members if group_of(name) == group}, standing[0] if standing else "")
    with_job = {name for members, _ in units for name in members}
    alone = [({name}, "") for name in nodes if name not in with_job]
    order = {name: index for index, name in enumerate(nodes)}
    return [Want(tuple(sorted(members, key=order.__getitem__)), zone) for members, zone in [*units, *alone]]


def _join(units: list[tuple[set[str], str]], members: set[str], zone: str) -> None:
    for index, (others, known) in enumerate(units):
        if others & members:
            units[index] = (others | members, known or zone)
            return
    units.append((members, zone))


def _read(nodes: str) -> tuple[Sequence[str], Sequence[Mapping[str, Any]]]:
    """slurmctld removes the file after ten seconds, so it is read before anything else."""
    path = os.environ.get("SLURM_RESUME_FILE")
    try:
        asked = json.loads(Path(path).read_text()) if path else {}
    except (OSError, json.JSONDecodeError) as unreadable:
        print(f"{path}: {unreadable}; every node is launched by itself", file=sys.stderr)
        asked = {}
    return expand(asked.get("all_nodes_resume") or nodes), asked.get("jobs", [])


def main() -> int:
    nodes, jobs = _read(sys.argv[1] if len(sys.argv) > 1 else "")

    def act(desk: Desk) -> None:
        log.info("asked for %d nodes by jobs %s", len(nodes), [job.get("job_id") for job in jobs])
        resume(desk, nodes, jobs)

    return run("resume", act)


if __name__ == "__main__":
    sys.exit(main())
