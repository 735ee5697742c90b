"""Jobs that slurmctld has on this node although they ended when it booted, because it has not missed the node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from slurm.control import jobs
from slurm.health.job_processes import list_steps

REASON = "muster: booted while slurmctld had jobs here"
"""Reason of the node until slurmd registers, which returns it to service (ReturnToService=2)."""
# States of sinfo in which a node may have running jobs, without the marks behind them.
_BUSY = ("allocated", "mixed", "draining")
_POWERING_UP = "#"
# A job whose nodes are still being started is CONFIGURING, unless its user asked for --wait-all-nodes=0.
_RUNNING = ("RUNNING", "SUSPENDED")


def may_have_jobs(state: str) -> bool:
    """Return whether a node in this state of sinfo may have running jobs; one that is being started has none yet."""
    return state.startswith(_BUSY) and not state.endswith(_POWERING_UP)


def find_lost(states: Mapping[str, str], steps: Iterable[str]) -> list[str]:
    """Return the jobs that run according to slurmctld and of which no step lives, given the states of jobs by id."""
    running = (job for job, state in states.items() if state in _RUNNING)
    return sorted(set(running) - set(steps), key=int)


def list_lost(node: str, run: Callable[[Sequence[str]], str]) -> list[str]:
    """Return the jobs on this node that its boot has ended; `run` runs Slurm's commands.

    Only meant for the first round after a boot, before slurmd registers: later, a job may have no step on a node.
    """
    return find_lost(jobs.parse_states(run(jobs.list_all_on_node(node))), list_steps())
