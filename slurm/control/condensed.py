"""Commands whose output the controller condenses (condense.py), because Systems Manager returns few characters of it.

It is apart from `nodes` because it reads a file next to it: the programs of the nodes run from archives, in which there
are no files.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from slurm.control.nodes import SHOW_NODES
from slurm.hostlist import hostlist

_CONDENSE = ("python3", "-c", Path(__file__).with_name("condense.py").read_text(encoding="utf-8"))


def show_free_nodes(nodes: Iterable[str], cpus: int, memory_mb: int) -> str:
    """Return the shell command that shows the states of nodes, and up to which of these sizes a job can start there.

    `slurm.control.nodes.parse_nodes` parses its output. It exits with 1 if slurmctld shows no node.
    """
    show, condense = [*SHOW_NODES, hostlist(nodes)], [*_CONDENSE, "nodes", str(cpus), str(memory_mb)]
    return f"{shlex.join(show)} 2>&1 | {shlex.join(condense)}"


def condense_ranks(command: Sequence[str]) -> str:
    """Return the shell command that runs the ready gate's job and prints one line for all ranks that report the same.

    `slurm.gate_verdict.parse_ranks` parses its output. It exits with the status of the job.
    """
    return shlex.join([*_CONDENSE, "ranks", *command])
