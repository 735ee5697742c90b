"""Show the progress of running phases: one live line each on a terminal, one line every 15 s elsewhere."""

import shutil
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TextIO

from setup.run import tail

LIVE_S = 0.5
PLAIN_S = 15.0
PLAIN_COLUMNS = 200


@dataclass(frozen=True)
class _Running:
    log: Path
    since: float


class Progress:
    """The progress display of all phases that run at the same time; phases may report from any thread."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.live = self.out.isatty()
        self._running: dict[str, _Running] = {}
        self._drawn = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._refresh, daemon=True)

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        with self._lock:
            self._erase()
            self.out.flush()

    def start(self, phase: str, log: Path, message: str | None = None) -> None:
        """Show the last line of the phase's log from now on."""
        with self._lock:
            self._running[phase] = _Running(log, time.monotonic())
            self._print(message)

    def finish(self, phase: str, message: str | None = None) -> None:
        """Stop showing the phase."""
        with self._lock:
            self._running.pop(phase, None)
            self._print(message)

    def _print(self, message: str | None) -> None:
        if message is not None:
            self._erase()
            self.out.write(f"{message}\n")
            self.out.flush()

    def _refresh(self) -> None:
        while not self._over.wait(LIVE_S if self.live else PLAIN_S):
            with self._lock:
                width = shutil.get_terminal_size().columns - 1 if self.live else PLAIN_COLUMNS
                lines = [self._line(phase)[:width] for phase in self._running]
                if self.live:
                    self._erase()
                    self.out.write("\n".join(lines))
                    self._drawn = len(lines)
                else:
                    self.out.write("".join(f"{line}\n" for line in lines))
                self.out.flush()

    def _line(self, phase: str) -> str:
        running = self._running[phase]
        newest = next(iter(tail(running.log, 1)), "")
        return f"{phase:<10} {time.monotonic() - running.since:6.0f} s  {newest}"

    def _erase(self) -> None:
        """Clear the live lines, from the last one, where the cursor is, up to the first."""
        if self.live:
            self.out.write("\r\x1b[K" + "\x1b[1A\x1b[K" * (self._drawn - 1))
            self._drawn = 0
