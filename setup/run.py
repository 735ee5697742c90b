"""Subprocesses: long ones write into the phase's log, short ones answer a question."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

TAIL = 15


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
    timeout: float | None = None,
) -> None:
    """Run to the end with all output in the log; anything but success is Failed."""
    command = [str(word) for word in argv]
    with log.open("ab") as out:
        out.write(f"$ {without_passwords(' '.join(command))}\n".encode())
        out.flush()
        try:
            code = subprocess.run(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=stdin or subprocess.DEVNULL,
                env=env,
                cwd=cwd,
                timeout=timeout,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise Failed(f"`{command[0]}` did not finish within {timeout:.0f} s", log) from None
        except FileNotFoundError:
            raise Failed(f"`{command[0]}` is not installed") from None
    if code:
        raise Failed(f"`{without_passwords(' '.join(command[:3]))}` failed with exit code {code}", log)


def without_passwords(text: str) -> str:
    """Addresses of mirrors and proxies may carry a name and a password."""
    return re.sub(r"://[^/@\s]+@", "://****@", text)


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
