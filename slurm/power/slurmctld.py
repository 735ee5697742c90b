"""The power programs' interface to slurmctld: read and change nodes, partitions and settings with scontrol."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Iterable, Sequence

from slurm.control import config, nodes
from slurm.control.nodes import NodeState
from slurm.hostlist import expand, hostlist

Run = Callable[[Sequence[str]], str]
"""Run a command and return its output."""
_TIMEOUT_S = 60.0


class Slurmctld:
    """The controller's daemon; tests pass their own function to run commands."""

    def __init__(self, run: Run | None = None) -> None:
        self._run = run or _run_command

    def nodes(self) -> dict[str, NodeState]:
        return nodes.parse_nodes(self._run(nodes.SHOW_NODES))

    def partitions(self) -> dict[str, str]:
        """Return the states of partitions by name."""
        return nodes.parse_partitions(self._run(nodes.SHOW_PARTITIONS))

    def never_suspended(self) -> frozenset[str]:
        return frozenset(expand(config.read_nodes(self._run(config.SHOW_CONFIG), "SuspendExcNodes")))

    def resume_timeout_s(self) -> float:
        seconds = config.read_seconds(self._run(config.SHOW_CONFIG), "ResumeTimeout")
        return math.inf if seconds is None else seconds

    def set_nodes(self, names: Iterable[str], state: str, reason: str = "") -> None:
        listed = hostlist(names)
        if listed:
            self._run(nodes.update_nodes(listed, state, reason))

    def set_partition(self, partition: str, state: str) -> None:
        self._run(nodes.update_partition(partition, state))

    def reconfigure(self) -> None:
        self._run(config.RECONFIGURE)


def _run_command(command: Sequence[str]) -> str:
    done = subprocess.run(command, text=True, capture_output=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        error = (done.stderr or done.stdout).strip()
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}: {error}")
    return done.stdout
