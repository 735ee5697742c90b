"""One line that says how the run is doing: in place on a terminal, a line per report in a log."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from typing import Any, TextIO

_THOUSAND = 1000.0


class Progress:
    def __init__(self, steps: int, stream: TextIO) -> None:
        self._steps = steps
        self._stream = stream
        self._in_place = stream.isatty()
        self._open = False
        self._seen: list[tuple[int, float]] = []

    def show(self, step: int, values: Mapping[str, Any]) -> None:
        self._seen = [*self._seen[-9:], (step, time.monotonic())]
        text = line(step, self._steps, values, self._eta(step))
        if not self._in_place:
            print(text, file=self._stream, flush=True)
            return
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r{text[:width]}\x1b[K")
        self._stream.flush()
        self._open = True

    def say(self, text: str) -> None:
        """A message that stays; the line in place makes room for it."""
        if self._open:
            self._stream.write("\r\x1b[K")
            self._open = False
        print(text, file=self._stream, flush=True)

    def close(self) -> None:
        if self._open:
            print(file=self._stream, flush=True)
            self._open = False

    def _eta(self, step: int) -> float | None:
        first, began = self._seen[0]
        if step <= first:
            return None
        return (time.monotonic() - began) / (step - first) * (self._steps - step)


def line(step: int, steps: int, values: Mapping[str, Any], eta: float | None) -> str:
    parts = [f"step {step:>{len(str(steps))}}/{steps}"]
    if "loss" in values:
        parts.append(f"loss {values['loss']:.4f}")
    for unit in ("tokens", "images", "samples"):
        if f"{unit}_per_s" in values:
            parts.append(f"{short(values[f'{unit}_per_s'])} {unit}/s")
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
        parts.append(f"eta {clock(eta)}")
    return "  ".join(parts)


def short(value: float) -> str:
    for suffix in ("", "k", "M", "G"):
        if abs(value) < _THOUSAND or suffix == "G":
            break
        value /= _THOUSAND
    return f"{value:.0f}{suffix}" if value >= 100 or not suffix else f"{value:.1f}{suffix}"  # noqa: PLR2004


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
