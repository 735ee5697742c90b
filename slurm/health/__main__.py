"""`python3 -m slurm.health prolog` drains a broken node before a job starts; `interval` also returns it to service.

In an UltraServer, `prolog` also starts the job's IMEX domain, and `epilog` ends it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from slurm.control import nodes
from slurm.health import imex_domain
from slurm.health.check import Expected, HealthProblem
from slurm.health.drain import Service, decide
from slurm.health.registry import find_problems

EXPECTED = Path("/etc/muster/expected.json")
ROUNDS = Path("/var/lib/muster/health-rounds")
# A healthy node answers in a second or two, and every job waits for it. But a busy driver can take several seconds, and
# a node that is drained by mistake costs more than a late job. slurmctld requeues a job that takes a minute to start.
PROLOG_S = 20.0
# slurmd kills a health program after a minute.
INTERVAL_S = 30.0
COMMAND_TIMEOUT_S = 10.0


def main(argv: list[str]) -> int:
    """Run the checks and return the exit code."""
    if argv == ["prolog"]:
        return _run_prolog()
    if argv == ["interval"]:
        return _run_interval()
    if argv == ["epilog"]:
        return _run_epilog()
    print("usage: python3 -m slurm.health prolog|interval|epilog", file=sys.stderr)
    return 2


def _run_prolog() -> int:
    """Drain the node and fail if there is a problem: Slurm then requeues the job.

    Slurm would also drain the node, but with the reason "Prolog error", which says neither why nor who may resume it.
    """
    expected = Expected.read(EXPECTED)
    problems = find_problems(expected, before_job=True, limit_s=PROLOG_S)
    if not problems and expected.ultraserver:
        job_nodes, uid = os.environ.get("SLURM_JOB_NODELIST", ""), int(os.environ["SLURM_JOB_UID"])
        problems = imex_domain.start_domain(job_nodes, expected.ultraserver, uid)
    if not problems:
        return 0
    for problem in problems:
        print(f"health: {problem}", file=sys.stderr)
    # The next rounds resume the node once it is healthy, whichever reason it has.
    _save_good_rounds(0)
    try:
        _act(_get_node(), problems)
    except (OSError, subprocess.SubprocessError, LookupError) as error:
        print(f"health: the reason was not set: {error}", file=sys.stderr)
    return 1


def _run_interval() -> int:
    node = _get_node()
    problems = find_problems(Expected.read(EXPECTED), before_job=False, limit_s=INTERVAL_S)
    # A healthy node that these checks did not drain does not contact slurmctld in every round.
    if problems or ROUNDS.exists():
        _act(node, problems)
    return 0


def _run_epilog() -> int:
    """Stop IMEX; never fail, because Slurm would drain the node, and the next prolog stops the service anyway."""
    try:
        if Expected.read(EXPECTED).ultraserver:
            imex_domain.end_domain()
    # ValueError: the file is not JSON.
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"health: imex: {error}", file=sys.stderr)
    return 0


def _get_node() -> str:
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def _act(node: str, problems: list[HealthProblem]) -> None:
    decision = decide(problems, _read_service(node), _read_good_rounds())
    if decision.state:
        command = nodes.update_nodes(node, decision.state, decision.reason)
        subprocess.run(command, check=True, timeout=COMMAND_TIMEOUT_S)
    _save_good_rounds(decision.good_rounds)


def _read_service(node: str) -> Service:
    command = nodes.list_node(node)
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
    listed = nodes.parse_listed(done.stdout)
    if not listed:
        raise LookupError(f"slurmctld does not know the node {node}")
    return Service(listed[0].drained, listed[0].reason)


def _read_good_rounds() -> int:
    return int(ROUNDS.read_text(encoding="ascii")) if ROUNDS.exists() else 0


def _save_good_rounds(good_rounds: int | None) -> None:
    if good_rounds is None:
        ROUNDS.unlink(missing_ok=True)
    else:
        ROUNDS.parent.mkdir(parents=True, exist_ok=True)
        ROUNDS.write_text(str(good_rounds), encoding="ascii")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
