"""Subprocesses: long ones write into the phase's log, short ones answer a question."""

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

TAIL = 15
# Far more than any of these commands takes on a slow machine: what is not over by then hangs.
LIMIT_S = 30 * 60.0
GRACE_S = 10.0


class Failed(Exception):
    """A phase cannot go on. The text says what and how to fix it; the log, where there is one, says why."""

    def __init__(self, message: str, log: Path | None = None) -> None:
        super().__init__(message)
        self.log = log

    def __str__(self) -> str:
        text = str(self.args[0])
        if self.log is None:
            return text
        lines = "".join(f"    | {line}\n" for line in tail(self.log, TAIL))
        return f"{text}\n  the last lines of {self.log}:\n{lines.rstrip()}"


def run(  # noqa: PLR0913
    argv: Sequence[str | Path],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: IO[bytes] | None = None,
    timeout: float = LIMIT_S,
) -> None:
    """Run to the end with all output in the log; anything but success, also not in time, is Failed."""
    command = [str(word) for word in argv]
    with log.open("ab") as out:
        out.write(f"$ {without_passwords(' '.join(command))}\n".encode())
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
            raise Failed(f"`{command[0]}` is not installed") from None
    try:
        code = process.wait(timeout)
    except subprocess.TimeoutExpired:
        raise Failed(f"`{command[0]}` did not finish within {_span(timeout)} and was stopped", log) from None
    finally:
        _end(process)
    if code:
        raise Failed(f"`{without_passwords(' '.join(command[:3]))}` failed with exit code {code}", log)


def without_passwords(text: str) -> str:
    """Addresses of mirrors and proxies may carry a name and a password."""
    return re.sub(r"://[^/@\s]+@", "://****@", text)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Of a command that did not end by itself (no time left, or interrupted), its children go too."""
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds > 99 else f"{seconds:.0f} s"  # noqa: PLR2004


@dataclass(frozen=True)
class Answer:
    code: int
    out: str = ""
    err: str = ""


def ask(argv: Sequence[str | Path], *, timeout: float = 20, env: Mapping[str, str] | None = None) -> Answer:
    """Answer to a quick question; code 127 when there is nobody to ask, 124 when no answer came in time."""
    try:
        done = subprocess.run(
            [str(word) for word in argv],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            env=env,
            text=True,
            errors="replace",
            check=False,
        )
    except (FileNotFoundError, PermissionError) as error:
        return Answer(127, err=str(error))
    except subprocess.TimeoutExpired:
        return Answer(124, err=f"no answer within {timeout:.0f} s")
    return Answer(done.returncode, done.stdout.strip(), done.stderr.strip())


def tail(log: Path, count: int) -> list[str]:
    """The last lines with something on them. Of a line rewritten with carriage returns the newest text counts."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16384))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    lines = [line.rstrip("\r").rsplit("\r", 1)[-1].rstrip() for line in text.split("\n")]
    return [line for line in lines if line][-count:]
