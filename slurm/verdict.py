"""What the ready gate saw, judged: which nodes can take the job, how far each rank came, whom to name on failure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm.node_state import NodeState

PREFIX = "muster-gate "
TIMED_OUT = 124
"""What `timeout` exits with."""
START = "job start"

_STAGES = ("started", "imported", "joined", "passed")
# Errors that only say that somebody else is gone.
_SECONDARY = ("did not join", "Connection was likely closed", "Connection closed by peer", "Connection reset by peer")


class GateError(Exception):
    """The cluster is not ready. `str()` is one paragraph: node, step, log line, fix."""

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
    """The last a host said: the stage it reached, and the error that ended it."""

    host: str
    rank: int
    stage: str
    sum: float | None = None
    error: str = ""


def parse_ranks(output: str) -> dict[str, Rank]:
    ranks: dict[str, Rank] = {}
    for line in output.splitlines():
        start = line.find(PREFIX)
        if start < 0:
            continue
        try:
            said = json.loads(line[start + len(PREFIX) :])
        except ValueError:
            continue
        before = ranks.get(said["host"])
        # A failure keeps the stage it happened in.
        stage = before.stage if said["stage"] == "failed" and before else said["stage"]
        ranks[said["host"]] = Rank(said["host"], said["rank"], stage, said.get("sum"), said.get("error", ""))
    return ranks


def unfit(expected: Sequence[str], nodes: Mapping[str, NodeState]) -> GateError | None:
    """The first node that no job can run on, although nobody took it away, with what slurmctld says of it."""
    for name in expected:
        node = nodes.get(name)
        if node is None:
            return GateError(name, "registration", "slurmctld does not know it", "run `muster up` again")
        if not node.works and not node.left_out:
            line = f"slurmctld has it as {node}" + (f" ({node.reason})" if node.reason else "")
            fix = (
                f"`scontrol update nodename={name} state=resume` once the cause is gone"
                if "DRAIN" in node.flags
                else ""
            )
            return GateError(
                name, "registration", line, fix or "`systemctl status slurmd` on the node, then `muster up` again"
            )
    return None


def judge(expected: Sequence[str], code: int, output: str, deadline_s: float = 0) -> GateError | None:
    """Nothing when every expected host, and no other, summed right and the job ended well; else the host to look at."""
    ranks = parse_ranks(output)
    right = len(expected) * (len(expected) + 1) / 2
    wrong = next((r for r in ranks.values() if r.sum is not None and r.sum != right), None)
    if wrong:
        return GateError(wrong.host, "all-reduce", f"the sum is {wrong.sum:g} instead of {right:g}")
    strangers = sorted(set(ranks) - set(expected))
    if strangers:
        return GateError(strangers[0], "job", f"ran there although only {', '.join(expected)} were asked for")
    if code == 0 and all(name in ranks and ranks[name].stage == "passed" for name in expected):
        return None
    if not ranks and code != TIMED_OUT:
        return GateError(", ".join(expected), START, last_error(output) or f"srun exited with {code} and said nothing")
    host = min(expected, key=lambda name: _progress(ranks.get(name)))
    return GateError(host, _step(ranks.get(host)), _line(host, ranks, code, output, deadline_s))


def last_error(output: str, host: str = "") -> str:
    """The line that says most: an error of srun or Slurm that names the host, else the last error there is."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and PREFIX not in line]
    errors = [line for line in lines if re.search(r"error|fail|cannot|denied|no such", line, re.IGNORECASE)]
    # "gpu-2: task 1: Exited with exit code 1" names the host but not the cause.
    telling = [line for line in errors if not re.search(r"task [\d,-]+: (Exited|Terminated|Killed)", line)]
    named = [line for line in telling if host and re.search(rf"\b{re.escape(host)}\b", line)]
    return next(reversed(named or telling or errors or lines), "")


def _progress(rank: Rank | None) -> float:
    if rank is None:
        return -1
    secondary = any(words in rank.error for words in _SECONDARY)
    return _STAGES.index(rank.stage) + (0.5 if secondary else 0)


def _step(rank: Rank | None) -> str:
    if rank is None:
        return START
    return {
        "started": "import torch",
        "imported": "joining the fabric",
        "joined": "all-reduce",
        "passed": "end of the job",
    }[rank.stage]


def _line(host: str, ranks: Mapping[str, Rank], code: int, output: str, deadline_s: float) -> str:
    if host in ranks and ranks[host].error:
        return ranks[host].error
    waited = next((r for r in ranks.values() if "did not join" in r.error), None)
    if waited:
        return f"no word from it; {waited.host} says: {waited.error}"
    line = last_error(output, host)
    if code == TIMED_OUT:
        return f"nothing more within {deadline_s:g} s" + (f"; last line: {line}" if line else "")
    return line or f"srun exited with {code}"
