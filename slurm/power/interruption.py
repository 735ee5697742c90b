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
from slurm.health.drain import REASON_MAX_CHARS
from slurm.power.reasons import TAKEN_BACK

STARTING_S = 15
"""A batch script that has run for less than this may not handle signals yet, and has nothing to save."""
_PAUSE_S = 1.0
_COMMAND_TIMEOUT_S = 40.0


def main(argv: Sequence[str]) -> int:
    """Empty this node and return the exit code."""
    node, notice = argv
    # Drained first, so that nothing that is requeued starts here again.
    _run_with_retries(nodes.update_nodes(node, "drain", f"{TAKEN_BACK}{notice}"[:REASON_MAX_CHARS]))
    listed = _run_with_retries(jobs.list_on_node(node))
    for command in plan_commands(listed):
        print(" ".join(command), flush=True)
        # A job may have ended meanwhile, or may not be requeued; the others must still be told.
        subprocess.run(command, check=False, timeout=_COMMAND_TIMEOUT_S)
    return 0


def plan_commands(listed: str) -> list[list[str]]:
    """Return the command for each job, given the output of `list_on_node`."""
    rows = [line.split("|", 3) for line in listed.splitlines() if line]
    return [
        jobs.warn_batch_script(job) if _can_save(state, elapsed, comment) else jobs.requeue_job(job)
        for job, state, elapsed, comment in rows
    ]


def _can_save(state: str, elapsed: str, comment: str) -> bool:
    """Return whether a signal reaches a job that saves: not while it waits for its nodes, and not as it starts."""
    seconds = re.fullmatch(r"0:(\d\d)", elapsed)
    is_starting = state == "CONFIGURING" or (seconds is not None and int(seconds[1]) < STARTING_S)
    return jobs.SAVES_ON_USR1 in comment.split() and not is_starting


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
