"""A machine that the cloud takes back: drain its node, let jobs save that can, and requeue the others.

Usage: `python -m slurm.power.interruption NOTICE`, on that machine. Slurm shows the notice as the node's reason; the
sweep replaces the machine when its jobs have ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from slurm.control import jobs, nodes
from slurm.health.drain import REASON_MAX_CHARS
from slurm.power.reasons import TAKEN_BACK

# The controller may be restarting; a cloud gives two minutes.
_RETRY_FOR_S, _PAUSE_S = 90.0, 3.0
_COMMAND_TIMEOUT_S = 40.0


def main(argv: Sequence[str]) -> int:
    """Empty this node and return the exit code."""
    (notice,) = argv
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
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
    rows = [line.partition("|") for line in listed.splitlines() if line]
    return [
        jobs.warn_batch_script(job) if jobs.SAVES_ON_USR1 in comment.split() else jobs.requeue_job(job)
        for job, _, comment in rows
    ]


def _run_with_retries(command: Sequence[str]) -> str:
    deadline = time.monotonic() + _RETRY_FOR_S
    while True:
        try:
            return subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True, timeout=_COMMAND_TIMEOUT_S
            ).stdout
        except (subprocess.SubprocessError, OSError):
            if time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
