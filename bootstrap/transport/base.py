"""What every way to reach a node can do: run a shell script, put a file, get a file."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

DEFAULT_TIMEOUT_S = 60.0


OnLine = Callable[[str], None]


@dataclass(frozen=True)
class Completed:
    code: int
    out: str
    err: str


class TransportError(Exception):
    """The node did not answer, or not in time: `line` says what was seen, `fix` what to do. Carries no script text."""

    def __init__(self, node: str, line: str, fix: str = "") -> None:
        super().__init__(node, line, fix)
        self.node = node
        self.line = line
        self.fix = fix

    def __str__(self) -> str:
        return f"node {self.node}: {self.line}." + (f" Fix: {self.fix}." if self.fix else "")


class Transport(Protocol):
    def run(
        self,
        script: str,
        *,
        stdin: bytes | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        on_line: OnLine | None = None,
    ) -> Completed:
        """Runs a POSIX shell script as root; raises TransportError when no exit code came back in time.

        `on_line` gets each line of output as it comes."""
        ...

    def put(self, path: str, data: bytes, mode: int = 0o644, owner: str = "root:root") -> None: ...

    def get(self, path: str) -> bytes: ...

    def close(self) -> None: ...


def put_script(path: str, mode: int, owner: str) -> str:
    """Writes stdin to `path` by a temporary file and a rename, so that no reader ever sees half a file."""
    quoted, temporary = shlex.quote(path), shlex.quote(f"{path}.muster-new")
    return (
        f'set -e; mkdir -p "$(dirname {quoted})"; (umask 077; cat > {temporary}); '
        f"chmod {mode:o} {temporary}; chown {shlex.quote(owner)} {temporary}; mv -f {temporary} {quoted}"
    )


class Lines:
    """Cuts arriving bytes into lines, for `on_line`."""

    def __init__(self, on_line: OnLine | None) -> None:
        self._on_line = on_line
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        if self._on_line is None:
            return
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        for line in whole:
            self._on_line(line.decode(errors="replace"))
