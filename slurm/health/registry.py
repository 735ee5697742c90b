"""The list of health checks, and the code that runs them concurrently within a time limit."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from slurm.health import clock, efa, filesystem, gpu, imex, nvlink, software, xid
from slurm.health.check import Answer, Check, Expected, HealthProblem, judge_answer

CHECKS: tuple[Check, ...] = (
    gpu.CHECK,
    xid.CHECK,
    nvlink.CHECK,
    imex.CHECK,
    efa.CHECK,
    software.CHECK,
    filesystem.MOUNTS,
    filesystem.DISK,
    clock.CHECK,
)
_POLL_S = 0.01


def find_problems(expected: Expected, *, before_job: bool, limit_s: float) -> list[HealthProblem]:
    """Run the checks that apply to this node and return what they report."""
    checks = [
        check
        for check in CHECKS
        if check.applies(expected) and check.name not in expected.disabled and (check.before_jobs or not before_job)
    ]
    answers = run_scripts([check.command(expected) for check in checks], limit_s)
    return [
        problem
        for check, answer in zip(checks, answers)  # noqa: B905  # The node's own Python may be 3.9.
        for problem in judge_answer(check, answer, expected)
    ]


def run_scripts(scripts: Sequence[str], limit_s: float) -> list[Answer]:
    """Run scripts at the same time and return their answers after at most `limit_s` seconds.

    Output goes to files, and a process that is stuck in the kernel is abandoned, because it cannot be killed.
    """
    running = [_RunningScript(script) for script in scripts]
    deadline = time.monotonic() + limit_s
    while any(script.process.poll() is None for script in running) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return [script.answer(limit_s) for script in running]


class _RunningScript:
    def __init__(self, script: str) -> None:
        self.out: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115  # `answer` closes it.
        self.err: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115  # `answer` closes it.
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=self.out,
            stderr=self.err,
            start_new_session=True,
        )

    def answer(self, limit_s: float) -> Answer:
        code = self.process.poll()
        if code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        with self.out, self.err:
            return Answer(_read_all(self.out), _read_all(self.err), code, limit_s)


def _read_all(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
