"""The programs that slurmctld runs (ResumeProgram, SuspendProgram and ResumeFailProgram) and their command line.

A target's entry point calls `main` with a function that loads its launcher.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurm.hostlist import expand, hostlist
from slurm.power import limits
from slurm.power.bring_up import BringUpResult, bring_up, report_down
from slurm.power.context import Context, log, log_to_journal
from slurm.power.install import FLEET, STATE
from slurm.power.launcher import Launcher
from slurm.power.memory import Memory
from slurm.power.requests import group_by_job, journaled
from slurm.power.slurmctld import Slurmctld
from slurm.power.sweep import sweep

_USAGE = 2


def resume(context: Context, nodes: Sequence[str], jobs: Sequence[Mapping[str, Any]]) -> BringUpResult:
    """Launch the nodes that jobs wait for, all nodes of a job or none, and mark nodes without a machine as down."""
    with context.memory.lock():
        existing = context.launcher.list_machines()
        zones, now = {name: machine.zone for name, machine in existing.by_name().items()}, context.now()
        requests = [replace(request, since=now) for request in group_by_job(nodes, jobs, zones)]
        with journaled(context.memory, requests) as unfinished:
            result = bring_up(context, existing, requests)
            unfinished.extend(report_down(context, requests, result))
    return result


def suspend(context: Context, nodes: Collection[str]) -> list[str]:
    """Terminate the machines of these nodes and return their ids.

    If a name has two machines, both are terminated. A machine launched since the program started stays, because Slurm
    may have requested the node again while this program waited for the lock.
    """
    started = context.now()
    with context.memory.lock():
        existing = context.launcher.list_machines().machines
        names = frozenset(nodes)
        ended = context.launcher.terminate([m for m in existing if m.name in names and m.launched <= started])
    log.info("%s: ended %s", hostlist(nodes), ", ".join(ended) or "nothing, there was no machine")
    return ended


def resume_failed(context: Context, nodes: Collection[str]) -> None:
    """Terminate the machines of nodes that did not come up in time, and count the failures for the breaker."""
    log.info("%s: not up within ResumeTimeout", hostlist(nodes))
    suspend(context, nodes)
    with context.memory.lock():
        limits.count_failures(context.memory, nodes)


def main(argv: Sequence[str], load_launcher: Callable[[Path], Launcher]) -> int:
    """Run the program that the first argument names and return its exit status.

    Slurm only logs the status, so errors are logged here; the sweep finishes the remaining work.
    """
    program, listed = (*argv, "", "")[:2]
    acts: dict[str, Callable[[Context], object]] = {
        "resume": lambda context: resume(context, nodes, jobs),
        "suspend": lambda context: suspend(context, nodes),
        "resume-failed": lambda context: resume_failed(context, nodes),
        "sweep": sweep,
    }
    if program not in acts:
        print(f"usage: {'|'.join(acts)} [NODES]", file=sys.stderr)
        return _USAGE
    log_to_journal(program)
    # slurmctld removes this file after ten seconds, so it is read before anything else.
    nodes, jobs = _read_resume_file(listed) if program == "resume" else (expand(listed), [])
    if jobs:
        log.info("%d nodes requested by jobs %s", len(nodes), [job.get("job_id") for job in jobs])
    try:
        acts[program](_make_context(load_launcher))
    except Exception:
        log.exception("%s failed", program)
        return 1
    return 0


def _make_context(load_launcher: Callable[[Path], Launcher]) -> Context:
    root = Path(os.environ.get("MUSTER_ROOT", "/"))
    launcher = load_launcher(root / FLEET.lstrip("/"))
    return Context(launcher, Slurmctld(), Memory(root / STATE.lstrip("/")), root / "etc/slurm")


def _read_resume_file(nodes: str) -> tuple[Sequence[str], Sequence[Mapping[str, Any]]]:
    """Return the nodes and jobs of the file that slurmctld wrote, or the nodes of the command line and no jobs."""
    path = os.environ.get("SLURM_RESUME_FILE")
    try:
        content = json.loads(Path(path).read_text()) if path else {}
    except (OSError, json.JSONDecodeError) as error:
        log.warning("%s: %s; every node is launched separately", path, error)
        content = {}
    return expand(content.get("all_nodes_resume") or nodes), content.get("jobs", [])
