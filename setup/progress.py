"""What the user sees while a phase works: one live line on a terminal, one line every 15 s elsewhere."""

import shutil
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TextIO

from setup.run import tail

LIVE_S = 0.5
PLAIN_S = 15.0


class Progress:
    """Shows the last line of the phase's log until the phase is over."""

    def __init__(self, phase: str, log: Path, out: TextIO | None = None) -> None:
        self.phase, self.log, self.out = phase, log, out or sys.stdout
        self.live = self.out.isatty()
        self.started = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> "Progress":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self.live:
            self.out.write("\r\x1b[K")
            self.out.flush()

    def _beat(self) -> None:
        while not self._over.wait(LIVE_S if self.live else PLAIN_S):
            last = next(iter(tail(self.log, 1)), "")
            text = f"{self.phase:<10} {time.monotonic() - self.started:6.0f} s  {last}"
            width = shutil.get_terminal_size().columns - 1 if self.live else 200
            self.out.write(f"\r\x1b[K{text[:width]}" if self.live else f"{text[:width]}\n")
            self.out.flush()
