"""`python3 -m slurm.health prolog` fails before a job starts; `interval` drains the node and returns it to service."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from slurm.control import nodes
from slurm.health.check import Expected, HealthProblem
from slurm.health.drain import Decision, Service, decide
from slurm.health.registry import find_problems

EXPECTED = Path("/etc/muster/expected.json")
ROUNDS = Path("/var/lib/muster/health-rounds")
# The prolog must be fast, because every job waits for it; slurmd kills a health program after a minute.
PROLOG_S = 2.0
INTERVAL_S = 30.0


def main(argv: list[str]) -> int:
    """Run the checks and return the exit code."""
    if argv == ["prolog"]:
        return _run_prolog()
    if argv == ["interval"]:
        return _run_interval()
    print("usage: python3 -m slurm.health prolog|interval", file=sys.stderr)
    return 2


def _run_prolog() -> int:
    """Fail if there is a problem: Slurm then drains the node and requeues the job."""
    problems = find_problems(Expected.read(EXPECTED), before_job=True, limit_s=PROLOG_S)
    for problem in problems:
        print(f"health: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _run_interval() -> int:
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    problems = find_problems(Expected.read(EXPECTED), before_job=False, limit_s=INTERVAL_S)
    # A healthy node that these checks did not drain does not contact slurmctld in every round.
    if problems or ROUNDS.exists():
        _act(node, problems)
    return 0


def _act(node: str, problems: list[HealthProblem]) -> None:
    decision = decide(problems, _read_service(node), _read_good_rounds())
    if decision.state:
        subprocess.run(nodes.update_nodes(node, decision.state, decision.reason), check=True)
    _save_good_rounds(problems, decision)


def _read_service(node: str) -> Service:
    text = subprocess.run(nodes.list_node(node), check=True, capture_output=True, text=True).stdout
    listed = nodes.parse_listed(text)[0]
    return Service(listed.drained, listed.reason)


def _read_good_rounds() -> int:
    return int(ROUNDS.read_text(encoding="ascii")) if ROUNDS.exists() else 0


def _save_good_rounds(problems: list[HealthProblem], decision: Decision) -> None:
    if problems or decision.good_rounds:
        ROUNDS.parent.mkdir(parents=True, exist_ok=True)
        ROUNDS.write_text(str(decision.good_rounds), encoding="ascii")
    else:
        ROUNDS.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
