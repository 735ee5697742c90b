"""`python3 -m slurm.health prolog` drains a broken node before a job starts; `interval` also returns it to service.

In an UltraServer, `prolog` also starts the job's IMEX domain, and `epilog` ends it. `epilog` checks the GPUs after a
failed job, `maintenance` runs the checks that take long, and `recheck` repeats those that drained the node.
`unkillable` records what hangs of a step that Slurm could not kill. `fence` is a service that stops jobs on a node that
is cut off. `clock` compares the clock with another machine's.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from slurm.health import (
    dcgm,
    failed_job,
    imex_domain,
    maintenance,
    other_clock,
    own_node,
    recheck,
    stray_jobs,
    unkillable,
)
from slurm.health.check import Context, Expected, HealthProblem
from slurm.health.registry import find_problems

EXPECTED = Path("/etc/muster/expected.json")
STATE = Path("/var/lib/muster")
RUN = Path("/run/muster")
GATE = RUN / "health-gate"
"""File that exists once the checks of the gate have run since the last boot."""
LOST_JOBS_MARK = "health-lost-jobs"
"""Name of the file that exists once a round since the last boot has looked for jobs that the boot has ended."""
UNKILLABLE = Path(unkillable.RECORDS)
# Errors of a full disk or quota, which a user can cause.
_FULL = (errno.ENOSPC, errno.EDQUOT)


def main(argv: list[str]) -> int:
    """Run the checks and return the exit code."""
    if argv[:1] == ["recheck"]:
        return _run_recheck(argv[1:])
    if argv[:1] == ["clock"] and len(argv) == 2:  # noqa: PLR2004  # The address of another machine.
        return other_clock.print_offset(argv[1])
    command = _COMMANDS.get(" ".join(argv))
    if command is None:
        usage = f"{'|'.join(_COMMANDS)}|recheck CHECK...|clock ADDRESS"
        print(f"usage: python3 -m slurm.health {usage}", file=sys.stderr)
        return 2
    return command()


def _run_prolog() -> int:
    """Drain the node and fail if it has a problem: Slurm then requeues the job.

    Slurm would also drain the node, but with the reason "Prolog error", which says neither why nor who may resume it.
    A node that must stay in service, because enough others of its group are drained, runs the job.
    """
    # For the epilog of another job, whose diagnosis this job disturbs; it must not keep this job from starting.
    with suppress(OSError):
        failed_job.note_start(RUN)
    expected = Expected.read(EXPECTED)
    problems = _find_problems(expected, "prolog")
    if not problems and expected.ultraserver:
        problems = _start_imex(expected)
    for problem in problems:
        print(f"health: {problem}", file=sys.stderr)
    if all(problem.blame == "user" for problem in problems):
        return 0
    node = own_node.OwnNode(expected, STATE)
    try:
        # The next rounds resume the node once it is healthy, whichever reason it has.
        node.save_good_rounds(0)
        return 0 if node.act(problems) == "held" else 1
    except OSError as error:
        if error.errno in _FULL:
            print(f"health: {error}; the job starts, because a user may have filled the disk", file=sys.stderr)
            return 0
        print(f"health: the reason was not set: {error}", file=sys.stderr)
    except (subprocess.SubprocessError, LookupError) as error:
        print(f"health: the reason was not set: {error}", file=sys.stderr)
    return 1


def _find_problems(expected: Expected, context: Context) -> list[HealthProblem]:
    """Run the checks of a context; a failing result of DCGM is not used again, because the fault may be over."""
    problems = find_problems(expected, context)
    if any(problem.check == dcgm.QUICK.name for problem in problems):
        with suppress(OSError):
            Path(dcgm.RESULT).unlink()
    return problems


def _start_imex(expected: Expected) -> list[HealthProblem]:
    """Start the job's IMEX domain; a job that Slurm describes badly starts without one and leaves the node alone."""
    job_nodes, uid = os.environ.get("SLURM_JOB_NODELIST", ""), os.environ.get("SLURM_JOB_UID", "")
    if not uid.isdigit():
        return [HealthProblem("imex", f"SLURM_JOB_UID={uid!r} is not a user id, so no domain was started", "user")]
    return imex_domain.start_domain(job_nodes, expected.ultraserver, int(uid))


def _run_interval() -> int:
    expected = Expected.read(EXPECTED)
    node = own_node.OwnNode(expected, STATE)
    # slurmd runs this program before it registers, so that a broken node is drained before its first job.
    is_first = not GATE.exists()
    if is_first:
        node.note_boot()
        # Only saves time: later, slurmctld finds the jobs lost by itself.
        with suppress(OSError, LookupError, subprocess.SubprocessError):
            _end_lost_jobs_once(node)
    with suppress(OSError):
        unkillable.note_killed(UNKILLABLE)
    problems = _find_problems(expected, "gate" if is_first else "periodic")
    if not node.was_changed:
        # OSError: also of a full /run.
        with suppress(OSError, LookupError, subprocess.SubprocessError):
            if stray_jobs.is_due(RUN, time.time()):
                node.take_over_drain()
    # A healthy node that these checks have not changed does not contact slurmctld in every round.
    if problems or node.was_changed:
        node.act(problems)
    GATE.parent.mkdir(parents=True, exist_ok=True)
    GATE.touch()
    if expected.gpus and not problems and shutil.which("dcgmi") and maintenance.is_due(RUN, time.time()):
        _start_maintenance(node)
    return 0


def _end_lost_jobs_once(node: own_node.OwnNode) -> None:
    """Let slurmctld end the jobs that the boot has ended, unless an earlier round has tried.

    A round that failed or was killed is repeated when slurmd has registered: then a new job may not have a step yet.
    """
    mark = RUN / LOST_JOBS_MARK
    if not mark.exists():
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        node.end_lost_jobs()


def _start_maintenance(node: own_node.OwnNode) -> None:
    """Start the deep checks, detached, if the idle node is in a maintenance reservation."""
    if node.is_in_maintenance():
        node.run(maintenance.render_start(node.name))
        maintenance.note_start(RUN)


def _run_maintenance() -> int:
    expected = Expected.read(EXPECTED)
    end = own_node.OwnNode(expected, STATE).read_maintenance_end()
    if end is not None:
        remaining_s = int(end - time.time())
        if remaining_s <= 0:
            return 0
        os.environ[dcgm.DEEP_LIMIT] = str(remaining_s)
    problems = find_problems(expected, "maintenance")
    if problems:
        own_node.OwnNode(expected, STATE).act(problems)
    return 0


def _run_recheck(names: list[str]) -> int:
    expected = Expected.read(EXPECTED)
    own_node.OwnNode(expected, STATE).save_recheck(passed=recheck.run_again(names, expected))
    return 0


def _run_unkillable() -> int:
    """Record what hangs of a step that slurmstepd could not kill, and give the drain that follows its reason."""
    job = os.environ.get("SLURM_JOB_ID", "")
    for line in unkillable.note_unkillable(job, UNKILLABLE):
        print(f"health: unkillable: {line}", file=sys.stderr)
    node = own_node.OwnNode(Expected.read(EXPECTED), STATE)
    # The next rounds resume the node once nothing hangs any more, even if nothing could be recorded.
    node.save_good_rounds(0)
    node.run(unkillable.ROUND_SOON)
    return 0


def _run_epilog() -> int:
    """Stop IMEX, and check the GPUs after a failed job.

    Never fail, because Slurm would drain the node; the next prolog stops the service of IMEX anyway.
    """
    try:
        expected = Expected.read(EXPECTED)
        if expected.ultraserver:
            imex_domain.end_domain()
        if expected.gpus and failed_job.is_failure(os.environ) and failed_job.is_alone(os.environ):
            began = time.time()
            problems = find_problems(expected, "failed-job")
            # Another job that ran meanwhile may be what the diagnosis noticed.
            is_disturbed = failed_job.has_started_since(RUN, began) or not failed_job.is_alone(os.environ)
            if problems and is_disturbed:
                print("health: another job ran during the diagnosis; its result is not used", file=sys.stderr)
            elif problems:
                own_node.OwnNode(expected, STATE).act(problems)
    # ValueError: the file is not JSON.
    except (OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
        print(f"health: epilog: {error}", file=sys.stderr)
    return 0


def _run_fence() -> int:
    # Imported here, because every job waits for the start of the prolog.
    from slurm.health import fence_service  # noqa: PLC0415

    return fence_service.run(RUN)


_COMMANDS: Mapping[str, Callable[[], int]] = {
    "prolog": _run_prolog,
    "interval": _run_interval,
    "epilog": _run_epilog,
    "maintenance": _run_maintenance,
    "unkillable": _run_unkillable,
    "fence": _run_fence,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
