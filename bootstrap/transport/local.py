"""Run scripts on this machine: a node that sets itself up executes the same steps."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from threading import Thread
from typing import IO

from bootstrap.transport.base import DEFAULT_TIMEOUT_S, Completed, Lines, OnLine, TransportError, put_script

NODE = "this machine"


class LocalTransport:
    """A transport that runs scripts on this machine."""

    def run(
        self,
        script: str,
        *,
        stdin: bytes | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        on_line: OnLine | None = None,
    ) -> Completed:
        body = script.encode()
        command = ["/bin/sh", "-c", f'eval "$(head -c {len(body)})"']
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        out, err = _Reader(process.stdout, Lines(on_line)), _Reader(process.stderr, Lines(None))
        _Writer(process.stdin, body + (stdin or b"")).start()
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise TransportError(NODE, f"no answer within {timeout:.0f} s") from None
        return Completed(code, out.text(), err.text())

    def put(self, path: str, data: bytes, mode: int = 0o644, owner: str = "root:root") -> None:
        completed = self.run(put_script(path, mode, owner, len(data)), stdin=data)
        if completed.code != 0:
            raise TransportError(NODE, f"cannot write {path}: {completed.err.strip()}")

    def get(self, path: str) -> bytes:
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise TransportError(NODE, f"cannot read {path}: {error.strerror}") from None

    def close(self) -> None:
        """Do nothing: there is no connection."""


class _Reader(Thread):
    def __init__(self, stream: IO[bytes] | None, lines: Lines) -> None:
        super().__init__(daemon=True)
        self._stream, self._lines = stream, lines
        self._chunks: list[bytes] = []
        self.start()

    def run(self) -> None:
        while self._stream and (chunk := os.read(self._stream.fileno(), 65536)):
            self._chunks.append(chunk)
            self._lines.feed(chunk)

    def text(self) -> str:
        self.join()
        if self._stream:
            self._stream.close()
        return b"".join(self._chunks).decode(errors="replace")


class _Writer(Thread):
    def __init__(self, stream: IO[bytes] | None, data: bytes) -> None:
        super().__init__(daemon=True)
        self._stream, self._data = stream, data

    def run(self) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(self._data)
            self._stream.close()
        except BrokenPipeError:
            pass  # The script ended without reading all of its input.
