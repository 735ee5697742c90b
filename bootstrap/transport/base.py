"""The interface of transports: run a shell script, write a file, read a file."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

DEFAULT_TIMEOUT_S = 60.0


OnLine = Callable[[str], None]


@dataclass(frozen=True)
class Completed:
    """Exit code and output of a script."""

    code: int
    out: str
    err: str


class TransportError(Exception):
    """A node did not answer, or not in time. The error never contains the script, which may hold secrets."""

    def __init__(self, node: str, line: str, fix: str = "") -> None:
        super().__init__(node, line, fix)
        self.node = node
        self.line = line
        self.fix = fix

    def __str__(self) -> str:
        return f"node {self.node}: {self.line}." + (f" Fix: {self.fix}." if self.fix else "")


class LostConnectionError(TransportError):
    """The connection to a node ended while a script ran: the node, not what the script waited for, is to be checked."""


class Transport(Protocol):
    """A connection to one node, as root."""

    def run(
        self,
        script: str,
        *,
        stdin: bytes | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        on_line: OnLine | None = None,
    ) -> Completed:
        """Run a POSIX shell script as root; raise TransportError if there is no exit code within `timeout` seconds.

        `on_line` is called with each line of output as it arrives.
        """
        ...

    def put(self, path: str, data: bytes, mode: int = 0o644, owner: str = "root:root") -> None: ...

    def get(self, path: str) -> bytes: ...

    def close(self) -> None: ...


def put_script(path: str, mode: int, owner: str, size: int) -> str:
    """Return a script that writes stdin to `path` atomically, so that no reader sees an incomplete file."""
    quoted, temporary = shlex.quote(path), shlex.quote(f"{path}.muster-new")
    return (
        f'set -e; mkdir -p "$(dirname {quoted})"; (umask 077; cat > {temporary}); '
        f"{require_size(temporary, size)}; "
        f"chmod {mode:o} {temporary}; chown {shlex.quote(owner)} {temporary}; mv -f {temporary} {quoted}"
    )


def require_size(quoted: str, size: int) -> str:
    """Return a command that removes a file and fails if its size differs: a connection that is cut looks like its end.

    It needs a single process, because bootstrap runs it for every file on every node.
    """
    message = f"the connection was cut before all {size} bytes had arrived"
    return f"[ \"$(stat -c %s {quoted})\" = {size} ] || {{ rm -f {quoted}; echo '{message}' >&2; exit 1; }}"


class Lines:
    """Splits arriving bytes into lines and calls `on_line` with each."""

    def __init__(self, on_line: OnLine | None) -> None:
        self._on_line = on_line
        self._partial = b""

    def feed(self, chunk: bytes) -> None:
        if self._on_line is None:
            return
        *whole, self._partial = (self._partial + chunk).split(b"\n")
        for line in whole:
            self._on_line(line.decode(errors="replace"))
