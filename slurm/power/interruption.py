"""A machine that the cloud takes back: drain its node, let jobs save that can, and requeue the others.

Usage: `python -m slurm.power.interruption NODE NOTICE`, on that machine, whose host name may not be its node name yet.
Slurm shows the notice as the node's reason; the sweep replaces the machine when its jobs have ended.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence

from slurm.control import jobs, nodes
from slurm.control.jobs import NodeJob
from slurm.health.drain import REASON_MAX_CHARS
from slurm.power.reasons import TAKEN_BACK

STARTING_S = 15
"""A batch script that has run for less than this may not handle signals yet, and has nothing to save."""
_PAUSE_S = 1.0
_COMMAND_TIMEOUT_S = 40.0
_JOB_TIMEOUT_S = 15.0
"""Less, because the commands of a job run after each other and the other jobs wait: the notice is of two minutes."""


def main(argv: Sequence[str]) -> int:
    """Empty this node and return the exit code."""
    node, notice = argv
    # Drained first, so that nothing that is requeued starts here again.
    _run_with_retries(nodes.update_nodes(node, "drain", f"{TAKEN_BACK}{notice}"[:REASON_MAX_CHARS]))
    for job in jobs.parse_on_node(_run_with_retries(jobs.list_on_node(node))):
        command = choose_command(job, None if _is_starting(job) else _try_to_run(jobs.show_comment(job.id)))
        if command:
            print(" ".join(command), flush=True)
            _try_to_run(command)
    return 0


def choose_command(job: NodeJob, comment: str | None) -> list[str]:
    """Return the command for a job, given the output of `show_comment`, or None without it; empty if the job has ended.

    A job whose comment cannot be read is requeued: that loses what it has not saved, but a signal might end it.
    """
    if comment == "":
        # To requeue a job that has just ended would run it again.
        return []
    can_save = comment is not None and jobs.SAVES_ON_USR1 in comment.split() and not _is_starting(job)
    return jobs.warn_batch_script(job.id) if can_save else jobs.requeue_job(job.id)


def _is_starting(job: NodeJob) -> bool:
    """Return whether no signal reaches a job that saves: while it waits for its nodes, and as it starts."""
    seconds = re.fullmatch(r"0:(\d\d)", job.time)
    return job.state == "CONFIGURING" or (seconds is not None and int(seconds[1]) < STARTING_S)


def _try_to_run(command: Sequence[str]) -> str | None:
    """Run a command for one job and return its output, or None if it fails: the other jobs must still be told.

    A job may have ended meanwhile, or may not be requeued, or the controller may not answer.
    """
    try:
        return subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, errors="replace", timeout=_JOB_TIMEOUT_S
        ).stdout
    except (subprocess.SubprocessError, OSError) as error:
        print(error, flush=True)
        return None


def _run_with_retries(command: Sequence[str]) -> str:
    """Run a command until it succeeds, and return its output; the cloud ends the machine, and with it the retries.

    The controller may be restarting. During set-up, no command of Slurm works before slurmd has started.
    """
    while True:
        try:
            return subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True, timeout=_COMMAND_TIMEOUT_S
            ).stdout
        except (subprocess.SubprocessError, OSError) as error:
            print(f"{error}; trying again", flush=True)
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
