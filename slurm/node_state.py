"""A node as slurmctld sees it, and the one rule about nodes that were taken away: by whom, and who brings them back."""

from __future__ import annotations

import re
from dataclasses import dataclass

_WORKING = frozenset({"IDLE", "MIXED", "ALLOCATED"})
_HARMLESS = frozenset({"COMPLETING", "CLOUD", "DYNAMIC_NORM", "PLANNED", "RESERVED"})
_BAD = frozenset({"DOWN", "UNKNOWN", "INVALID_REG", "NOT_RESPONDING", "FAIL", "FUTURE", "INVAL"})
_AWAY = frozenset({"DRAIN", "DOWN", "FAIL", "INVALID_REG"})
# Why Slurm itself takes a node away, and what a new bootstrap puts right.
_CURED = re.compile(r"gres/|Low |Not responding|unexpectedly rebooted|muster")
_REASON = re.compile(r" Reason=(.*?)(?: \[(\S+)@\S+\])?(?: Comment=.*)?$")
# Whom slurmctld names for what it does by itself (SlurmUser).
_ITSELF = "slurm"


@dataclass(frozen=True)
class NodeState:
    state: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    by: str = ""
    """Who gave the reason."""
    free_cpus: int = 0
    free_mb: int = 0

    @property
    def works(self) -> bool:
        return self.state in _WORKING and self.flags <= _HARMLESS

    @property
    def resumable(self) -> bool:
        """Away for a reason that bootstrap removes."""
        return self._away and bool(_CURED.search(self.reason))

    @property
    def left_alone(self) -> bool:
        """Away for another reason: bootstrap neither brings it back nor waits for it."""
        return self._away and bool(self.reason) and not self.resumable

    @property
    def left_out(self) -> bool:
        """A person took it away: the cluster is ready without it. What Slurm itself gave up needs somebody to look."""
        return self.left_alone and self.by != _ITSELF

    @property
    def usable(self) -> bool:
        """As far as bootstrap can make it so."""
        return self.left_alone or not (self._all & _BAD or self.resumable)

    @property
    def completing(self) -> bool:
        return "COMPLETING" in self.flags

    def can_take(self, memory_mb: int) -> bool:
        return self.works and self.state != "ALLOCATED" and self.free_cpus > 0 and self.free_mb >= memory_mb

    def __str__(self) -> str:
        return "+".join([self.state, *sorted(self.flags)]).lower()

    @property
    def _all(self) -> frozenset[str]:
        return self.flags | {self.state}

    @property
    def _away(self) -> bool:
        return bool(self._all & _AWAY)


ABSENT = NodeState("UNKNOWN", reason="slurmctld does not know the node")


def parse_nodes(text: str) -> dict[str, NodeState]:
    """`scontrol show node --oneliner`: `Key=value` pairs; of these the reason may hold spaces and equal signs."""
    nodes = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line.split(" Reason=", 1)[0]))
        if "NodeName" not in fields or "State" not in fields:
            continue
        state, *flags = re.sub("[^A-Z_+]", "", fields["State"]).split("+")
        silent = {"NOT_RESPONDING"} if "*" in fields["State"] else set()
        reason = _REASON.search(line.rstrip())
        nodes[fields["NodeName"]] = NodeState(
            state=state,
            flags=frozenset(flags) | silent,
            reason=reason[1].strip() if reason else "",
            by=(reason[2] or "") if reason else "",
            free_cpus=int(fields.get("CPUTot", 0)) - int(fields.get("CPUAlloc", 0)),
            free_mb=int(fields.get("RealMemory", 0)) - int(fields.get("AllocMem", 0)),
        )
    return nodes
