"""Run subprocesses: long ones write to the log of their phase, short ones return their output."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import IO

TAIL_LINES = 15
# Far longer than any of these commands takes on a slow machine: a command that exceeds it is hanging.
TIMEOUT_S = 30 * 60.0
KILL_GRACE_S = 10.0
POLL_S = 0.1

# Set in the thread of each phase: the event that ends it when another phase fails or the user interrupts.
_stop_event: ContextVar[threading.Event | None] = ContextVar("stop_event", default=None)


class SetupError(Exception):
    """An error that ends setup: the message names the problem and its fix, the end of the log shows the cause."""

    def __init__(self, message: str, log: Path | None = None) -> None:
        super().__init__(message)
        self.log = log

    def __str__(self) -> str:
        text = str(self.args[0])
        if self.log is None:
            return text
        lines = "".join(f"    | {line}\n" for line in tail(self.log, TAIL_LINES))
        return f"{text}\n  the last lines of {self.log}:\n{lines.rstrip()}"


class StoppedError(Exception):
    """The phase was stopped from outside: another phase failed, or the user interrupted setup."""


def stop_on(event: threading.Event) -> None:
    """Make every command that this thread runs from now on end when the event is set."""
    _stop_event.set(event)


def raise_if_stopped() -> None:
    """Raise StoppedError if this thread's stop event is set."""
    event = _stop_event.get()
    if event is not None and event.is_set():
        raise StoppedError


def run(  # noqa: PLR0913
    argv: Sequence[str | Path],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: IO[bytes] | None = None,
    timeout: float = TIMEOUT_S,
) -> None:
    """Run a command with all its output in the log; raise SetupError if it fails or exceeds the timeout."""
    command = [str(argument) for argument in argv]
    with log.open("ab") as out:
        out.write(f"$ {hide_passwords(' '.join(command))}\n".encode())
        out.flush()
        try:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=stdin or subprocess.DEVNULL,
                env=env,
                cwd=cwd,
                process_group=0,
            )
        except FileNotFoundError:
            raise SetupError(f"`{command[0]}` is not installed") from None
    try:
        _communicate(process, timeout)
    except subprocess.TimeoutExpired:
        duration = f"{timeout / 60:.0f} min" if timeout > 99 else f"{timeout:.0f} s"  # noqa: PLR2004
        raise SetupError(f"`{command[0]}` did not finish within {duration} and was stopped", log) from None
    finally:
        _end(process)
    if process.returncode:
        message = f"`{hide_passwords(' '.join(command[:3]))}` failed with exit code {process.returncode}"
        raise SetupError(message, log)


def hide_passwords(text: str) -> str:
    """Replace the user and password in URLs of mirrors and proxies."""
    return re.sub(r"://[^/@\s]+@", "://****@", text)


@dataclass(frozen=True)
class Answer:
    """The exit code and the output of a short command."""

    code: int
    out: str = ""
    err: str = ""


def ask(argv: Sequence[str | Path], *, timeout: float = 20, env: Mapping[str, str] | None = None) -> Answer:
    """Return the output of a short command; its code is 127 if it is not installed and 124 after the timeout."""
    try:
        process = subprocess.Popen(
            [str(argument) for argument in argv],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            env=env,
            process_group=0,
        )
    except (FileNotFoundError, PermissionError) as error:
        return Answer(127, err=str(error))
    with process:
        try:
            out, err = _communicate(process, timeout)
        except subprocess.TimeoutExpired:
            return Answer(124, err=f"no answer within {timeout:.0f} s")
        finally:
            _end(process)
    return Answer(process.returncode, out.decode(errors="replace").strip(), err.decode(errors="replace").strip())


def _communicate(process: "subprocess.Popen[bytes]", timeout: float) -> tuple[bytes, bytes]:
    """Wait for the process, checking the thread's stop event in between."""
    deadline = time.monotonic() + timeout
    while True:
        raise_if_stopped()
        left = deadline - time.monotonic()
        try:
            return process.communicate(timeout=max(min(left, POLL_S), 0))
        except subprocess.TimeoutExpired:
            if left <= POLL_S:
                raise


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a process that is still running (timeout or interrupt) together with its children."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILL_GRACE_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail(log: Path, count: int) -> list[str]:
    """Return the last non-empty lines; for a line rewritten with carriage returns, only its newest text."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16384))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1].rstrip() for line in text.split("\n")]
    return [line for line in lines if line][-count:]
