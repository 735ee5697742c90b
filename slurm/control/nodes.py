"""Nodes as slurmctld sees them: the commands that read and change their state, and what the states mean."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from slurm.hostlist import expand

_WORKING = frozenset({"IDLE", "MIXED", "ALLOCATED"})
_HARMLESS = frozenset({"COMPLETING", "CLOUD", "DYNAMIC_NORM", "PLANNED", "RESERVED"})
_BAD = frozenset({"DOWN", "UNKNOWN", "INVALID_REG", "NOT_RESPONDING", "FAIL", "FUTURE", "INVAL"})
_AWAY = frozenset({"DRAIN", "DOWN", "FAIL", "INVALID_REG"})
_POWERED_OFF = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"})
_POWERING_UP = frozenset({"POWERING_UP", "POWER_UP"})
_BUSY = frozenset({"ALLOCATED", "MIXED"})
# Starts of reasons that another bootstrap run resolves: those that Slurm itself sets, and ours.
_SLURMS = ("gres/", "Low ", "Not responding", "Node unexpectedly rebooted")
_OURS = "muster: "
_REASON = re.compile(r" Reason=(.*?)(?: \[(\S+)@(\S+)\])?(?: Comment=.*)?$")
_COMMENT = re.compile(r" Comment=(.*)$")
# The user (SlurmUser) that slurmctld shows for changes that it made by itself.
_SLURM_USER = "slurm"
# sinfo prints this for a node without a reason.
_NO_REASON = "none"


@dataclass(frozen=True)
class NodeState:
    """A node's state, and who took it out of service: this decides who may return it."""

    state: str
    flags: frozenset[str] = frozenset()
    reason: str = ""
    by: str = ""
    """User who set the reason."""
    since: float = 0.0
    """Time of the reason in seconds since the epoch, read in this machine's time zone; 0 if it is not known."""
    free_cpus: int = 0
    free_mb: int = 0
    address: str = ""
    gpus: bool = False
    """Whether the node has GPUs."""
    version: str = ""
    """Version of its slurmd; empty until it has registered."""
    comment: str = ""
    partitions: tuple[str, ...] = ()

    @property
    def works(self) -> bool:
        return self.state in _WORKING and self.flags <= _HARMLESS

    @property
    def resumable(self) -> bool:
        """Whether the node is out of service for a reason that bootstrap resolves."""
        slurms = self.by == _SLURM_USER and self.reason.startswith(_SLURMS)
        return self._away and (slurms or self.reason.startswith(_OURS))

    @property
    def left_alone(self) -> bool:
        """Whether the node is out of service for another reason: bootstrap neither resumes it nor waits for it."""
        return self._away and bool(self.reason) and not self.resumable

    @property
    def left_out(self) -> bool:
        """Whether a person took the node out of service, so that the cluster is ready without it."""
        return self.left_alone and self.by != _SLURM_USER

    @property
    def usable(self) -> bool:
        """Whether the node is in the best state that bootstrap can reach."""
        return self.left_alone or not (self._all & _BAD or self.resumable)

    @property
    def completing(self) -> bool:
        return "COMPLETING" in self.flags

    @property
    def busy(self) -> bool:
        """Whether the node holds a job, or one that is ending."""
        return self.state in _BUSY or self.completing

    @property
    def out_of_service(self) -> bool:
        return self.state == "DOWN" or "DRAIN" in self.flags

    @property
    def powering_up(self) -> bool:
        return bool(self.flags & _POWERING_UP)

    @property
    def powered_off(self) -> bool:
        """Whether the node is powered down or about to be."""
        return bool(self.flags & _POWERED_OFF) and not self.powering_up

    @property
    def powered_down(self) -> bool:
        return "POWERED_DOWN" in self.flags and not self.powering_up

    @property
    def is_up(self) -> bool:
        """Whether the node works and is powered on."""
        return self.works and not self.powered_off and not self.powering_up

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

SHOW_NODES = ("scontrol", "show", "node", "--oneliner")
"""Command whose output `parse_nodes` parses."""


def show_nodes(nodes: Iterable[str] = ()) -> str:
    """Return the shell command that shows these nodes, or all nodes."""
    return shlex.join([*SHOW_NODES, *filter(None, [",".join(nodes)])])


def parse_queried_nodes(script: str) -> tuple[str, ...]:
    """Return the names of the nodes that a script shows; none if it shows all nodes or none."""
    query = re.search(rf"{shlex.join(SHOW_NODES)} '?([a-zA-Z][^\s'|;&>]*)", script)
    return expand(query[1]) if query else ()


def parse_nodes(text: str) -> dict[str, NodeState]:
    """Parse `Key=value` pairs, one node or hostlist per line; the reason may contain spaces and equal signs."""
    nodes: dict[str, NodeState] = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line.split(" Reason=", 1)[0]))
        if "NodeName" not in fields or "State" not in fields:
            continue
        state, *flags = re.sub("[^A-Z_+]", "", fields["State"]).split("+")
        silent = {"NOT_RESPONDING"} if "*" in fields["State"] else set()
        reason, comment = _REASON.search(line.rstrip()), _COMMENT.search(line)
        node = NodeState(
            state=state,
            flags=frozenset(flags) | silent,
            reason=reason[1].strip() if reason else "",
            by=(reason[2] or "") if reason else "",
            since=_parse_time(reason[3] or "") if reason else 0.0,
            free_cpus=int(fields.get("CPUTot", 0)) - int(fields.get("CPUAlloc", 0)),
            free_mb=int(fields.get("RealMemory", 0)) - int(fields.get("AllocMem", 0)),
            address=fields.get("NodeAddr", ""),
            gpus="gpu" in fields.get("Gres", ""),
            version=fields.get("Version", ""),
            comment=comment[1].strip() if comment else "",
            partitions=tuple(filter(None, fields.get("Partitions", "").split(","))),
        )
        nodes |= dict.fromkeys(expand(fields["NodeName"]), node)
    return nodes


def _parse_time(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def update_nodes(hostlist: str, state: str, reason: str = "") -> list[str]:
    """Return the command that sets the state of nodes."""
    why = [f"reason={_print_on_one_line(reason)}"] if reason else []
    return ["scontrol", "update", f"nodename={hostlist}", f"state={state}", *why]


def update_partition(partition: str, state: str) -> list[str]:
    """Return the command that opens (UP) or closes (DOWN) a partition."""
    return ["scontrol", "update", f"partitionname={partition}", f"state={state}"]


SHOW_PARTITIONS = ("scontrol", "show", "partition", "--oneliner")


def parse_partitions(text: str) -> dict[str, str]:
    """Return the states of partitions by name."""
    return dict(re.findall(r"PartitionName=(\S+).*?\bState=(\S+)", text))


_LISTED_WORKING = ("idle", "mixed", "allocated", "completing", "planned", "reserved")
# Marks that sinfo adds to the state of nodes that are powered down, powering up, not responding and so on.
_LISTED_MARKS = "*~#!%$@^-+"
_POWERED_OFF_MARKS = ("~", "%", "!")


@dataclass(frozen=True)
class ListedNode:
    """A line of sinfo."""

    partition: str
    """Empty if the command did not list partitions."""
    node: str
    """A name, or a hostlist of nodes with the same state and reason."""
    state: str
    """State as sinfo prints it, possibly with a mark, as in `idle~`."""
    reason: str = ""

    @property
    def works(self) -> bool:
        return self.state.rstrip(_LISTED_MARKS) in _LISTED_WORKING

    @property
    def is_up(self) -> bool:
        return self.state in _LISTED_WORKING

    @property
    def drained(self) -> bool:
        return "drain" in self.state


LIST_NODES = "sinfo -h -o '%N|%T|%E'"
"""Nodes with the same state and reason share a line."""
LIST_NODES_BY_PARTITION = "sinfo -h -N -o '%R|%N|%T|%E'"
"""One line per partition and node."""


def list_node(node: str) -> list[str]:
    """Return the command that lists one node."""
    return ["sinfo", "--noheader", "--nodes", node, "--format", "%N|%T|%E"]


@dataclass(frozen=True)
class GroupNode:
    """A node of a group, with the time at which it was taken out of service."""

    name: str
    state: str
    """State as sinfo prints it, possibly with a mark, as in `idle~`."""
    since: str
    """Time of the reason by slurmctld's clock, in ISO 8601 to the second; `Unknown` without one."""
    reason: str

    @property
    def drained(self) -> bool:
        return "drain" in self.state

    @property
    def powered_on(self) -> bool:
        """Whether the node is up, or at least not powered down or about to be."""
        return not self.state.endswith(_POWERED_OFF_MARKS)


def list_group(group: str) -> list[str]:
    """Return the command that lists the nodes of a group; each group has a partition of its name."""
    return ["sinfo", "--noheader", "--Node", "--partition", group, "--format", "%N|%T|%H|%E"]


def parse_group(text: str) -> list[GroupNode]:
    """Parse `list_group`; skip lines of another form."""
    rows = (line.split("|", 3) for line in text.splitlines() if line.count("|") >= 3)  # noqa: PLR2004
    return [
        GroupNode(name, state, since, "" if reason == _NO_REASON else reason) for name, state, since, reason in rows
    ]


def set_comment(node: str, comment: str) -> list[str]:
    """Return the command that sets the comment of a node, or removes it."""
    return ["scontrol", "update", f"nodename={node}", f"comment={_print_on_one_line(comment)}"]


def _print_on_one_line(text: str) -> str:
    """Return a text without characters that would forge a row of sinfo: it may quote what a user's job left behind."""
    return "".join(c if c.isprintable() else " " for c in text)


def parse_listed(text: str) -> list[ListedNode]:
    """Parse LIST_NODES or `list_node`; skip lines of another form."""
    return parse_listed_by_partition("\n".join(f"|{line}" for line in text.splitlines()))


def parse_listed_by_partition(text: str) -> list[ListedNode]:
    """Parse LIST_NODES_BY_PARTITION; skip lines of another form."""
    rows = (line.split("|", 3) for line in text.splitlines() if line.count("|") >= 3)  # noqa: PLR2004
    return [
        ListedNode(partition, node, state, "" if reason == _NO_REASON else reason)
        for partition, node, state, reason in rows
    ]


PROBES_AT_ONCE = 64
PROBE_S = 3
# A hung node still accepts connections, but its sshd sends no banner.
_PROBE = f"""port=$(scontrol show config | sed -n 's/^SlurmdPort *= *//p')
export port
printf '%s\\n' @NODES@ | xargs -r -n 1 -P {PROBES_AT_ONCE} sh -c '
  address=${{1#*:}}
  timeout {PROBE_S} bash -c "</dev/tcp/$address/$port && exec 3<>/dev/tcp/$address/22 && read -r _ <&3" 2>/dev/null ||
    echo "${{1%%:*}}"
' probe"""


def probe_nodes(addresses: Mapping[str, str]) -> str:
    """Return a shell script that prints the nodes whose slurmd or sshd does not answer, given addresses by name."""
    return _PROBE.replace("@NODES@", " ".join(f"{name}:{address}" for name, address in addresses.items()))
