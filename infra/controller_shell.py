"""Scripts on the controller as root over ssh, whose output or input is too large to hold in memory."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

from cluster import names
from infra import shell
from infra.archive import CHUNK
from infra.home import StackHome

# A machine that is gone sends nothing: the connection ends after four unanswered questions.
_OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=15", "ServerAliveCountMax=4")


class ScriptError(Exception):
    """A script on the controller failed, or the controller does not answer."""

    def __init__(self, code: int, err: str) -> None:
        super().__init__(err.strip().splitlines()[-1] if err.strip() else f"exit code {code}")
        self.code, self.err = code, err


@dataclass(frozen=True)
class ControllerShell:
    """Runs scripts on the controller of a stack."""

    stack: StackHome

    def run(self, script: str) -> str:
        """Run a script and return its output; raise ScriptError if it fails."""
        return b"".join(self.read(script)).decode(errors="replace").strip()

    def read(self, script: str) -> Iterator[bytes]:
        """Yield the output of a script as it arrives; raise ScriptError at the end if it failed."""
        with tempfile.TemporaryFile() as err, self._start(script, subprocess.DEVNULL, err) as process:
            try:
                while process.stdout and (chunk := process.stdout.read(CHUNK)):
                    yield chunk
            except BaseException:
                process.kill()
                raise
            _check(process, err)

    def write(self, script: str, chunks: Iterable[bytes]) -> None:
        """Run a script with this input; raise ScriptError if it fails."""
        with tempfile.TemporaryFile() as err, self._start(script, subprocess.PIPE, err) as process:
            try:
                # If the script ends early, its exit code and message say why.
                with suppress(BrokenPipeError):
                    _send(process.stdin, chunks)
            except BaseException:
                process.kill()
                raise
            _check(process, err)

    def _start(self, script: str, stdin: int, err: IO[bytes]) -> subprocess.Popen[bytes]:
        ssh, *arguments = shell.command_line(self.stack, names.CONTROLLER, "root", ["sh", "-c", shlex.quote(script)])
        return subprocess.Popen(
            [ssh, *(f"-o{option}" for option in _OPTIONS), *arguments], stdin=stdin, stdout=subprocess.PIPE, stderr=err
        )


def _send(stream: IO[bytes] | None, chunks: Iterable[bytes]) -> None:
    if stream is not None:
        with stream:
            for chunk in chunks:
                stream.write(chunk)


def _check(process: subprocess.Popen[bytes], err: IO[bytes]) -> None:
    code = process.wait()
    if code != 0:
        err.seek(0)
        raise ScriptError(code, err.read().decode(errors="replace"))
