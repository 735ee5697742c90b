"""`python3 -m slurm.health prolog`: fails before a job starts; `interval`: takes the node away and gives it back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from slurm.health.check import Expected, Problem
from slurm.health.drain import Decision, Standing, decide
from slurm.health.run import problems

EXPECTED = Path("/etc/muster/expected.json")
ROUNDS = Path("/var/lib/muster/health-rounds")
# Every job waits for the prolog; slurmd ends a health program after a minute.
PROLOG_S = 2.0
INTERVAL_S = 30.0


def main(argv: list[str]) -> int:
    if argv == ["prolog"]:
        return _prolog()
    if argv == ["interval"]:
        return _interval()
    print("usage: python3 -m slurm.health prolog|interval", file=sys.stderr)
    return 2


def _prolog() -> int:
    """A failing prolog is enough: Slurm drains the node and gives the job back to the queue."""
    found = problems(Expected.read(EXPECTED), before_job=True, limit_s=PROLOG_S)
    for problem in found:
        print(f"health: {problem}", file=sys.stderr)
    return 1 if found else 0


def _interval() -> int:
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    found = problems(Expected.read(EXPECTED), before_job=False, limit_s=INTERVAL_S)
    # A healthy node that we did not take away needs no question to slurmctld, every time, from every node.
    if not found and not ROUNDS.exists():
        return 0
    _act(node, found)
    return 0


def _act(node: str, found: list[Problem]) -> None:
    decision = decide(found, _standing(node), _good_rounds())
    if decision.state:
        reason = [f"reason={decision.reason}"] if decision.reason else []
        subprocess.run(["scontrol", "update", f"nodename={node}", f"state={decision.state}", *reason], check=True)
    _remember(found, decision)


def _standing(node: str) -> Standing:
    line = subprocess.run(
        ["sinfo", "--noheader", "--nodes", node, "--format", "%T|%E"], check=True, capture_output=True, text=True
    ).stdout.splitlines()[0]
    state, _, reason = line.partition("|")
    return Standing(drained="drain" in state, reason="" if reason == "none" else reason)


def _good_rounds() -> int:
    return int(ROUNDS.read_text(encoding="ascii")) if ROUNDS.exists() else 0


def _remember(found: list[Problem], decision: Decision) -> None:
    if found or decision.good_rounds:
        ROUNDS.parent.mkdir(parents=True, exist_ok=True)
        ROUNDS.write_text(str(decision.good_rounds), encoding="ascii")
    else:
        ROUNDS.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
