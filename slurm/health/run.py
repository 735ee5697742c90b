"""Runs checks all at once and within a bound, whatever the machine's state."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from slurm.health import clock, efa, filesystem, gpu, nvlink, software, xid
from slurm.health.check import Answer, Check, Expected, Problem, judged

ALL: tuple[Check, ...] = (
    gpu.CHECK,
    xid.CHECK,
    nvlink.CHECK,
    efa.CHECK,
    software.CHECK,
    filesystem.MOUNTS,
    filesystem.DISK,
    clock.CHECK,
)
_LOOK_S = 0.01


def problems(expected: Expected, *, before_job: bool, limit_s: float) -> list[Problem]:
    chosen = [
        check
        for check in ALL
        if check.applies(expected) and check.name not in expected.disabled and (check.before_jobs or not before_job)
    ]
    answers = ask([check.command(expected) for check in chosen], limit_s)
    return [
        problem
        for check, answer in zip(chosen, answers)  # noqa: B905  # the nodes' own Python may be 3.9
        for problem in judged(check, answer, expected)
    ]


def ask(scripts: Sequence[str], limit_s: float) -> list[Answer]:
    """Output goes to files and nobody is waited for: a process stuck in the kernel can only be left behind."""
    running = [_Running(script) for script in scripts]
    deadline = time.monotonic() + limit_s
    while any(one.process.poll() is None for one in running) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return [one.answer(limit_s) for one in running]


class _Running:
    def __init__(self, script: str) -> None:
        self.out: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by `answer`
        self.err: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by `answer`
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
            return Answer(_text(self.out), _text(self.err), code, limit_s)


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
