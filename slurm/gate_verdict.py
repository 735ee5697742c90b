"""The ready gate's verdict: which nodes can run the job, how far each rank got, and which node to name on failure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm.control.nodes import NodeState
from slurm.hostlist import expand

PREFIX = "muster-gate "
TIMED_OUT = 124
"""Exit code of `timeout`."""
START = "job start"
_JOINING = "joining the fabric"
_CONNECT = "check the node's network, and that no firewall or security group blocks TCP between the nodes"

_STAGES = ("started", "imported", "compiling", "compiled", "waiting", "connected", "joined", "passed")
# In these stages, a rank connects to the store, which the first one serves.
_CONNECTING = ("imported", "compiled", "waiting")
# Errors that are only a consequence of another rank's end.
_SECONDARY = ("did not join", "Connection was likely closed", "Connection closed by peer", "Connection reset by peer")
# What Slurm prints after a task has failed.
_CONSEQUENCE = r"task [\d,-]+: (Exited|Terminated|Killed)|STEP \S+ ON \S+ CANCELLED AT \S+ DUE TO TASK FAILURE"


class GateError(Exception):
    """The cluster is not ready; `str()` is one paragraph with node, step, log line and fix."""

    def __init__(self, node: str, step: str, line: str, fix: str = "") -> None:
        super().__init__(node, step, line, fix)
        self.node = node
        self.step = step
        self.line = line
        self.fix = fix

    def __str__(self) -> str:
        fix = f" Fix: {self.fix}." if self.fix else ""
        return f"not ready: node {self.node}, step {self.step}: {self.line.rstrip('.')}.{fix}"


@dataclass(frozen=True)
class Rank:
    """The last report of a rank: the stage it reached, and the error that ended it."""

    host: str
    rank: int
    stage: str
    sum: float | None = None
    error: str = ""
    missing: tuple[int, ...] = ()
    """The ranks that this one waited for in vain."""
    unanswered: bool = False
    """Whether the node of the first rank, which all others connect to, does not answer this one."""


def parse_ranks(output: str) -> dict[str, Rank]:
    """Return the last report of each rank by host; ranks that report the same may share a line (condense.py)."""
    ranks: dict[str, Rank] = {}
    for line in output.splitlines():
        start = line.find(PREFIX)
        if start < 0:
            continue
        try:
            entry = json.loads(line[start + len(PREFIX) :])
        except ValueError:
            continue
        for host, rank in zip(expand(entry["host"]), _read_numbers(str(entry["rank"])), strict=True):
            before = ranks.get(host)
            # A failure keeps the stage it happened in.
            failed = before if entry["stage"] == "failed" else None
            ranks[host] = Rank(
                host,
                rank,
                failed.stage if failed else entry["stage"],
                entry.get("sum"),
                entry.get("error", ""),
                tuple(entry.get("missing", ())),
                failed.unanswered if failed else entry.get("unanswered", False),
            )
    return ranks


def find_unfit_node(expected: Sequence[str], nodes: Mapping[str, NodeState]) -> GateError | None:
    """Return an error for the first node that cannot run a job and that no person took out of service."""
    for name in expected:
        node = nodes.get(name)
        if node is None:
            return GateError(name, "registration", "slurmctld does not know it", "run `muster up` again")
        if not node.works and not node.left_out:
            line = f"slurmctld reports it as {node}" + (f" ({node.reason})" if node.reason else "")
            fix = (
                f"`scontrol update nodename={name} state=resume` once the cause is fixed"
                if "DRAIN" in node.flags
                else "`systemctl status slurmd` on the node, then run `muster up` again"
            )
            return GateError(name, "registration", line, fix)
    return None


def judge_job(expected: Sequence[str], code: int, output: str, deadline_s: float = 0) -> GateError | None:
    """Return None if the job succeeded with the right sum on exactly these hosts, else an error that names a host.

    All ranks connect to the one on the first host.
    """
    ranks = parse_ranks(output)
    right = len(expected) * (len(expected) + 1) / 2
    wrong = next((r for r in ranks.values() if r.sum is not None and r.sum != right), None)
    if wrong:
        return GateError(wrong.host, "all-reduce", f"the sum is {wrong.sum:g} instead of {right:g}")
    strangers = sorted(set(ranks) - set(expected))
    if strangers:
        return GateError(strangers[0], "job", f"ran there, but only {', '.join(expected)} were requested")
    if code == 0 and all(name in ranks and ranks[name].stage == "passed" for name in expected):
        return None
    if not ranks and code != TIMED_OUT:
        return GateError(
            ", ".join(expected), START, find_error_line(output) or f"srun exited with {code} without output"
        )
    if host := _find_cut_off(expected, ranks):
        rank = ranks.get(host)
        line = (
            f"{expected[0]} does not answer it" if rank and rank.unanswered else "no other node gets an answer from it"
        )
        return GateError(host, _JOINING, line, _CONNECT)
    host = _find_last(expected, ranks)
    return GateError(host, _step(ranks.get(host)), _line(host, ranks, code, output, deadline_s))


def find_error_line(output: str, host: str = "") -> str:
    """Return the most informative line: an error that names the host, else the last error, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and PREFIX not in line]
    errors = [line for line in lines if re.search(r"error|fail|cannot|denied|no such", line, re.IGNORECASE)]
    # "gpu-2: task 1: Exited with exit code 1" names the host but not the cause.
    telling = [line for line in errors if not re.search(_CONSEQUENCE, line)]
    named = [line for line in telling if host and re.search(rf"\b{re.escape(host)}\b", line)]
    return next(reversed(named or telling or errors or lines), "")


def _read_numbers(text: str) -> list[int]:
    """Return the numbers of `0-2,7`."""
    runs = [part.partition("-") for part in text.split(",")]
    return [number for first, _, last in runs for number in range(int(first), int(last or first) + 1)]


def _find_cut_off(expected: Sequence[str], ranks: Mapping[str, Rank]) -> str:
    """Return the first node that cannot reach the first rank's, or that one if no other reaches it; "" if all can.

    It comes before a rank that is behind: on a busy machine that one may only be slow.
    """
    first, others = expected[0], expected[1:]
    cut_off = [name for name in others if name in ranks and ranks[name].unanswered]
    # Of two nodes, either can be the one that is cut off: it is rather the one that cannot even connect to itself. A
    # rank that still imports torch, or compiles, has not tried.
    cannot_connect = first not in ranks or ranks[first].stage in _CONNECTING
    is_first = len(cut_off) == len(others) and (len(others) > 1 or cannot_connect)
    return first if cut_off and is_first else next(iter(cut_off), "")


def _find_last(expected: Sequence[str], ranks: Mapping[str, Rank]) -> str:
    """Return the node that was waited for in vain, or whose rank has got least far."""
    # The first rank that gives up ends the job, so ranks that joined can be as silent as the one they waited for.
    missing = {rank for r in ranks.values() for rank in r.missing}
    return min(
        expected, key=lambda name: (name in ranks and ranks[name].rank not in missing, _progress(ranks.get(name)))
    )


def _progress(rank: Rank | None) -> float:
    if rank is None:
        return -1
    secondary = any(message in rank.error for message in _SECONDARY)
    return _STAGES.index(rank.stage) + (0.5 if secondary else 0)


def _step(rank: Rank | None) -> str:
    if rank is None:
        return START
    return {
        "started": "import torch",
        "imported": _JOINING,
        "compiling": "compiling for the GPU",
        "compiled": _JOINING,
        "waiting": _JOINING,
        "connected": _JOINING,
        "joined": "all-reduce",
        "passed": "end of the job",
    }[rank.stage]


def _line(host: str, ranks: Mapping[str, Rank], code: int, output: str, deadline_s: float) -> str:
    if host in ranks and ranks[host].error:
        return ranks[host].error
    waited = next((r for r in ranks.values() if "did not join" in r.error), None)
    if waited:
        return f"no report from it; {waited.host} reports: {waited.error}"
    line = find_error_line(output, host)
    if code == TIMED_OUT:
        return f"no further output within {deadline_s:g} s" + (f"; last line: {line}" if line else "")
    return line or f"srun exited with {code}"
