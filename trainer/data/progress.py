"""A bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import time
from typing import TextIO

_WIDTH = 24
_TERMINAL_S = 0.1
_LOG_S = 5.0


class Progress:
    """Bytes of work done out of a total, with rate and time left."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._total = total
        self._stream = stream
        self._live = stream.isatty()
        self._done = 0
        self._began = self._shown = time.monotonic()

    def add(self, size: int) -> None:
        self._done += size
        if time.monotonic() - self._shown > (_TERMINAL_S if self._live else _LOG_S):
            self._show()

    def end(self) -> None:
        self._show()
        if self._live:
            self._stream.write("\n")
            self._stream.flush()

    def _show(self) -> None:
        self._shown = time.monotonic()
        share = min(1.0, self._done / max(1, self._total))
        rate = self._done / max(1e-9, self._shown - self._began)
        left = (self._total - self._done) / rate if rate else float("inf")
        bar = ("#" * int(share * _WIDTH)).ljust(_WIDTH, ".")
        text = f"[{bar}] {share:4.0%}  {self._done / 1e6:.1f} of {self._total / 1e6:.1f} MB  {rate / 1e6:.1f} MB/s"
        text += f"  {left:.0f} s left" if 0 < left < float("inf") else ""
        self._stream.write(f"\r{text}\x1b[K" if self._live else f"{text}\n")
        self._stream.flush()
