"""The list of health checks, and the code that runs them concurrently within their time limits."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from slurm.health import clock, dcgm, efa, filesystem, gpu, gpu_processes, imex, nvlink, rdma, software, unkillable, xid
from slurm.health.check import Answer, Check, Context, Expected, HealthProblem, judge_answer
from slurm.health.drain import list_checks
from slurm.health.remedy import list_rungs

CHECKS: tuple[Check, ...] = (
    gpu.CHECK,
    xid.CHECK,
    nvlink.CHECK,
    dcgm.QUICK,
    dcgm.AFTER_FAILURE,
    dcgm.DEEP,
    imex.CHECK,
    efa.CHECK,
    rdma.PORTS,
    rdma.ERRORS,
    software.CHECK,
    filesystem.MOUNTS,
    filesystem.DISK,
    filesystem.JOB_DISK,
    unkillable.CHECK,
    clock.CHECK,
    # Last, because reasons are cut off: whatever else is wrong decides on the node's remedies and on another machine.
    gpu_processes.CHECK,
)
_POLL_S = 0.01


def select_checks(expected: Expected, context: Context) -> list[Check]:
    """Return the checks that run on this node in a context."""
    return [
        check
        for check in CHECKS
        if context in check.contexts and check.applies(expected) and check.name not in expected.disabled
    ]


def find_problems(expected: Expected, context: Context) -> list[HealthProblem]:
    """Run the checks of a context that apply to this node and return what they report."""
    checks = select_checks(expected, context)
    answers = run_scripts([(check.command(expected), check.limit_s) for check in checks])
    return [
        problem
        for check, answer in zip(checks, answers)  # noqa: B905  # The node's own Python may be 3.9.
        for problem in judge_answer(check, answer, expected)
    ]


def may_reboot(reason: str) -> bool:
    """Return whether a node with this reason may reset its GPUs and reboot by itself before it is replaced."""
    remedies = {check.name: check.remedies for check in CHECKS}
    return "reboot" in list_rungs(remedies.get(name, ()) for name in list_checks(reason))


def helps_to_replace(reason: str) -> bool:
    """Return whether another machine may solve a problem of this reason, as it may if no check reported the problem."""
    remedies = {check.name: check.remedies for check in CHECKS}
    names = list_checks(reason)
    return not names or any("replace" in remedies.get(name, ("replace",)) for name in names)


def run_scripts(scripts: Sequence[tuple[str, float]]) -> list[Answer]:
    """Run scripts at the same time, each with its time limit in seconds, and return their answers.

    A process that is stuck in the kernel is abandoned, because it cannot be killed.
    """
    running = [_RunningScript(script, limit_s) for script, limit_s in scripts]
    while not all(script.is_over() for script in running):
        time.sleep(_POLL_S)
    return [script.answer() for script in running]


class _RunningScript:
    def __init__(self, script: str, limit_s: float) -> None:
        # In memory: on a disk that a user has filled, a healthy machine would seem to answer nothing.
        self.out, self.err = _open_memory(), _open_memory()
        self.limit_s, self.deadline = limit_s, time.monotonic() + limit_s
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=self.out,
            stderr=self.err,
            start_new_session=True,
        )

    def is_over(self) -> bool:
        return self.process.poll() is not None or time.monotonic() >= self.deadline

    def answer(self) -> Answer:
        code = self.process.poll()
        if code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        with self.out, self.err:
            return Answer(_read_all(self.out), _read_all(self.err), code, self.limit_s)


def _open_memory() -> IO[str]:
    return os.fdopen(os.memfd_create("check"), "w+", encoding="utf-8", errors="replace")


def _read_all(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
