"""The state of a running cluster for `status`: machines as their target reports them, Slurm as the controller does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from cluster.inventory import Inventory, Node
from slurm.control.jobs import CUT_ROWS
from slurm.control.named_jobs import LIST_JOBS, ListedJob, parse_jobs, split_rows
from slurm.control.nodes import LIST_NODES, parse_listed
from slurm.hostlist import expand

DAEMONS = ("slurmctld", "slurmdbd", "mariadb")
_MARK = "---muster---"
_PARTS = 6
_MOST_JOBS = 100
# Equal nodes share a line and the queue is cut off, because the output of AWS Run Command is limited; users choose how
# long the names of their jobs are.
# The names of jobs may contain backslashes, which the `echo` of some shells replaces.
SCRIPT = f"""
{LIST_NODES} 2>&1; echo {_MARK}
jobs=$({LIST_JOBS} 2>&1)
printf '%s\\n' "$jobs" | head -n {_MOST_JOBS} | {CUT_ROWS}; echo {_MARK}
printf '%s\\n' "$jobs" | wc -l; echo {_MARK}
for unit in {" ".join(DAEMONS)}; do echo "$unit|$(systemctl is-active $unit)"; done; echo {_MARK}
sed -n 's/^ProctrackType=//p' /etc/slurm/slurm.conf 2>/dev/null; echo {_MARK}
cat /run/muster/job-network 2>/dev/null || echo missing
"""


@dataclass(frozen=True)
class Machine:
    """A node's machine."""

    state: str
    """`running`, `pending`, `exited` or another state of the target; `gone`; `off` if it starts when a job needs it."""
    up_s: float | None = None
    exit_code: int = 0
    kind: str = "machine"
    """What messages call it."""
    problem: str = ""
    """What is wrong with a machine that runs, with its fix; empty if nothing is known."""


@dataclass(frozen=True)
class SlurmNode:
    """A node as Slurm reports it."""

    state: str
    reason: str = ""


@dataclass(frozen=True)
class Slurm:
    """The state of Slurm as the controller reports it."""

    nodes: dict[str, SlurmNode] = field(default_factory=dict)
    jobs: tuple[ListedJob, ...] = ()
    more_jobs: int = 0
    """Number of jobs that are not in `jobs`."""
    daemons: dict[str, str] = field(default_factory=dict)
    tracking: str = ""
    """ProctrackType in the controller's slurm.conf; empty if the controller did not answer."""
    job_network: str = ""
    """`closed` if the controller has loaded the rules between users, `open: <reason>` if its kernel cannot, `missing`
    before anything has tried to; empty if the controller did not answer."""
    problem: str = ""
    """Why the controller did not answer; empty if it did."""


@dataclass(frozen=True)
class Facts:
    """The state of a cluster."""

    inventory: Inventory
    nodes: tuple[Node, ...]
    """Nodes of the inventory, and those that Slurm launches."""
    machines: dict[str, Machine]
    slurm: Slurm


def parse(text: str) -> Slurm:
    """Return the state of Slurm from the output of SCRIPT."""
    parts = [split_rows(part.strip()) for part in re.split(rf"^{_MARK}$", text, flags=re.MULTILINE)]
    if len(parts) != _PARTS:
        return Slurm(problem="its answer is incomplete")
    nodes, jobs, total, daemons, tracking, job_network = parts
    errors = [line for line in (*nodes, *jobs) if "error" in line and "|" not in line]
    return Slurm(
        nodes=dict(_nodes(nodes)),
        jobs=parse_jobs(jobs),
        # An empty queue is an empty line.
        more_jobs=max(0, int("".join(total) or 0) - max(1, len(jobs))),
        daemons=dict(line.split("|", 1) for line in daemons if "|" in line),
        tracking="".join(tracking),
        job_network="".join(job_network),
        problem=errors[0] if errors else "",
    )


def _nodes(lines: list[str]) -> Iterator[tuple[str, SlurmNode]]:
    for listed in parse_listed("\n".join(lines)):
        yield from ((name, SlurmNode(listed.state, listed.reason)) for name in expand(listed.node))
