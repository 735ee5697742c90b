"""Jobs that run on this node although slurmctld has none of them here: forgotten in a crash, or requeued elsewhere."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from slurm.control import jobs
from slurm.health.job_processes import list_job_processes, list_steps, signal_jobs

# slurmd registers at its start, and slurmctld answers by ending the steps of all jobs that it does not have here, with
# the epilog. By itself it asks a node to register only every 20 pings. Steps survive the restart.
REGISTER = ("systemctl", "--no-block", "restart", "slurmd")
LOOK_S = 300.0
"""How often a node looks whether Slurm has drained it, and restarts slurmd because of strays."""
_LOOKED = "drain-looked-up"
_REGISTERED = "strays-registered"


def is_due(folder: Path, now: float, mark: str = _LOOKED) -> bool:
    """Return whether to look now for a drain that Slurm set, or do what another mark stands for, and remember it."""
    path = folder / mark
    if path.exists() and 0 <= now - path.stat().st_mtime < LOOK_S:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    path.touch()
    return True


def list_local_jobs() -> set[str]:
    """Return the jobs that have steps or processes on this node."""
    return list_steps() | {process.job for process in list_job_processes() if not process.is_over}


def find_strays(local: Iterable[str], listed: Iterable[str]) -> list[str]:
    """Return the jobs on this node that slurmctld does not list here.

    The jobs on the node must be looked up first: one that starts in between is in the list.
    """
    return sorted(set(local) - set(listed), key=int)


def list_strays(node: str, run: Callable[[Sequence[str]], str]) -> list[str]:
    """Return the jobs that run on this node and that slurmctld does not have here; `run` runs Slurm's commands."""
    local = list_local_jobs()
    return find_strays(local, jobs.parse_states(run(jobs.list_all_on_node(node)))) if local else []


def end_strays(strays: Sequence[str], run: Callable[[Sequence[str]], str]) -> None:
    """Kill the processes of these jobs, and let slurmctld end what is left of them."""
    kill_strays(strays)
    run(REGISTER)


def end_strays_in_round(strays: Sequence[str], run: Callable[[Sequence[str]], str], folder: Path, now: float) -> None:
    """End these jobs, but let slurmd register only if it has not lately: it runs a round itself whenever it starts.

    A job that does not obey would let it restart for ever. The same holds if the mark in `folder` cannot be written.
    """
    kill_strays(strays)
    if is_due(folder, now, _REGISTERED):
        run(REGISTER)


def kill_strays(strays: Sequence[str]) -> None:
    """Kill the processes of these jobs."""
    killed = sorted(signal_jobs(signal.SIGKILL, strays), key=int)
    print(
        f"health: slurmctld does not have {name_jobs(strays)} here; killed {name_jobs(killed)}",
        file=sys.stderr,
        flush=True,
    )


def name_jobs(numbers: Sequence[str]) -> str:
    """Return `job 7`, `jobs 7, 8`, or `no process` if there are none."""
    return f"{'job' if len(numbers) == 1 else 'jobs'} {', '.join(numbers)}" if numbers else "no process"
