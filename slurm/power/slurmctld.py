"""What slurmctld says of nodes and partitions, and what it is told."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from slurm.hostlist import expand, hostlist
from slurm.node_state import NodeState, parse_nodes

Run = Callable[[list[str]], str]
_TIMEOUT_S = 60.0
_OFF = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"})
_COMING = frozenset({"POWERING_UP", "POWER_UP"})
_BUSY = frozenset({"ALLOCATED", "MIXED"})


@dataclass(frozen=True)
class PowerNode:
    name: str
    is_: NodeState
    address: str
    gpus: bool

    @property
    def off(self) -> bool:
        """Powered down, or on its way there."""
        return bool(self.is_.flags & _OFF) and not self.coming

    @property
    def powered_down(self) -> bool:
        return "POWERED_DOWN" in self.is_.flags and not self.coming

    @property
    def coming(self) -> bool:
        return bool(self.is_.flags & _COMING)

    @property
    def away(self) -> bool:
        return self.is_.state == "DOWN" or "DRAIN" in self.is_.flags

    @property
    def busy(self) -> bool:
        return self.is_.state in _BUSY or self.is_.completing

    @property
    def works(self) -> bool:
        return self.is_.works and not self.off and not self.coming


class Slurmctld:
    def __init__(self, run: Run | None = None) -> None:
        self._run = run or _scontrol

    def nodes(self) -> dict[str, PowerNode]:
        return power_nodes(self._run(["show", "node", "--oneliner"]))

    def partitions(self) -> dict[str, str]:
        """Their states by name."""
        text = self._run(["show", "partition", "--oneliner"])
        return dict(re.findall(r"PartitionName=(\S+).*?\bState=(\S+)", text))

    def never_suspended(self) -> frozenset[str]:
        found = re.search(r"^SuspendExcNodes\s*=\s*(\S+)", self._run(["show", "config"]), re.MULTILINE)
        return frozenset(expand(found[1])) if found and found[1] != "(null)" else frozenset()

    def resume_timeout_s(self) -> float:
        found = re.search(r"^ResumeTimeout\s*=\s*(\d+)", self._run(["show", "config"]), re.MULTILINE)
        return float(found[1]) if found else math.inf

    def set_nodes(self, nodes: Iterable[str], state: str, reason: str = "") -> None:
        listed = hostlist(nodes)
        if listed:
            why = [f"reason={reason}"] if reason else []
            self._run(["update", f"nodename={listed}", f"state={state}", *why])

    def set_partition(self, partition: str, state: str) -> None:
        self._run(["update", f"partitionname={partition}", f"state={state}"])

    def reconfigure(self) -> None:
        self._run(["reconfigure"])


def power_nodes(text: str) -> dict[str, PowerNode]:
    """Of `scontrol show node --oneliner`."""
    more = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line.split(" Reason=", 1)[0]))
        more[fields.get("NodeName", "")] = (fields.get("NodeAddr", ""), "gpu" in fields.get("Gres", ""))
    return {name: PowerNode(name, state, *more[name]) for name, state in parse_nodes(text).items()}


def _scontrol(words: list[str]) -> str:
    done = subprocess.run(["scontrol", *words], text=True, capture_output=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise RuntimeError(f"scontrol {' '.join(words)} exited with {done.returncode}: {said}")
    return done.stdout
