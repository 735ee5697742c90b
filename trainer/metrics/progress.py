"""The progress line of a run: updated in place on a terminal, one line per report in a log."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from typing import Any, TextIO

_THOUSAND = 1000.0


class Progress:
    """The progress line and the messages of a run, printed to a stream."""

    def __init__(self, steps: int, stream: TextIO) -> None:
        self._steps = steps
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._is_line_open = False
        self._reports: list[tuple[int, float]] = []
        self.seconds_left: float | None = None
        """Estimated time to the last step; None before the second report."""

    def show(self, step: int, values: Mapping[str, Any]) -> None:
        self._reports = [*self._reports[-9:], (step, time.monotonic())]
        self.seconds_left = self._estimate_seconds_left(step)
        text = format_line(step, self._steps, values, self.seconds_left)
        if not self._is_terminal:
            print(text, file=self._stream, flush=True)
            return
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r{text[:width]}\x1b[K")
        self._stream.flush()
        self._is_line_open = True

    def say(self, text: str) -> None:
        """Print a message that stays, above the progress line."""
        if self._is_line_open:
            self._stream.write("\r\x1b[K")
            self._is_line_open = False
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        if self._is_line_open:
            print(file=self._stream, flush=True)
            self._is_line_open = False

    def _estimate_seconds_left(self, step: int) -> float | None:
        first, started = self._reports[0]
        if step <= first:
            return None
        return (time.monotonic() - started) / (step - first) * (self._steps - step)


def format_line(step: int, steps: int, values: Mapping[str, Any], eta: float | None) -> str:
    """Return the progress line with the values that are available; `eta` is in seconds."""
    parts = [f"step {step:>{len(str(steps))}}/{steps}"]
    if "loss" in values:
        parts.append(f"loss {values['loss']:.4f}")
    for unit in ("tokens", "images", "samples"):
        if f"{unit}_per_s" in values:
            parts.append(f"{format_count(values[f'{unit}_per_s'])} {unit}/s")
            break
    if "mfu" in values:
        parts.append(f"MFU {values['mfu']:.1%}")
    if "step_s" in values:
        parts.append(f"{values['step_s'] * 1000:.1f} ms")
    if values.get("step_s") and values.get("communication_s") is not None:
        parts.append(f"exposed {values['communication_s'] / values['step_s']:.0%}")
    if "memory_gb" in values:
        parts.append(f"mem {values['memory_gb']:.2f} GB")
    if eta is not None:
        parts.append(f"eta {format_duration(eta)}")
    return "  ".join(parts)


def format_count(value: float) -> str:
    """Return a number as "7", "1.2k" or "3.4M"."""
    for suffix in ("", "k", "M", "G"):
        if abs(value) < _THOUSAND or suffix == "G":
            break
        value /= _THOUSAND
    return f"{value:.0f}{suffix}" if value >= 100 or not suffix else f"{value:.1f}{suffix}"  # noqa: PLR2004


def format_duration(duration_s: float) -> str:
    """Return a duration as "1:02:05" or "2:05"."""
    minutes, seconds = divmod(round(duration_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
