"""Processes as forks of one that has imported torch: each import takes seconds of processor time."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from multiprocessing.context import ForkServerContext
from pathlib import Path

_PRELOAD = ["tests.trainer.preload"]


def fork_context() -> ForkServerContext:
    """Return the context whose processes are forks with torch and the trainer already imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context


class ForkedProgram:
    """`python -m program arguments...` in a fork, with the methods of `subprocess.Popen` that tests use."""

    def __init__(self, program: str, arguments: list[str], cwd: Path, environment: dict[str, str], log: Path) -> None:
        self._process = fork_context().Process(target=_run, args=(program, arguments, cwd, environment, log))
        self._process.start()
        self.pid: int = self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(program: str, arguments: list[str], cwd: Path, environment: dict[str, str], log: Path) -> None:
    # No torch.set_num_threads here: it makes a pool of threads, which the ranks that the program forks cannot use.
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, sys.stdout.fileno())
    os.dup2(handle, sys.stderr.fileno())
    os.close(handle)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = [program, *arguments]
    runpy.run_module(program, run_name="__main__", alter_sys=True)
