"""The progress of a run as a JSON file for other programs: schedulers, dashboards, scripts."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE_NAME = "progress.json"
# Steps can take milliseconds and the folder may be on a network: once a second is enough for any reader.
_MIN_INTERVAL_S = 1.0
_MEASUREMENTS = ("loss", "step_s", "tokens_per_s", "images_per_s", "samples_per_s", "mfu", "memory_gb")


class ProgressFile:
    """The file `progress.json` of a run; it is replaced as a whole, so that a reader never sees half of it."""

    def __init__(self, folder: Path, name: str, steps: int) -> None:
        self._file = folder / FILE_NAME
        self._run = {"name": name, "steps": steps, "job": os.environ.get("SLURM_JOB_ID")}
        self._measurements: dict[str, Any] = {}
        self._written_at = -math.inf

    def start(self, step: int) -> None:
        """Write that the run trains and has completed this step."""
        self._write({"state": "training", "step": step, **_estimate_end(None)})

    def update(self, step: int, values: Mapping[str, Any], seconds_left: float | None) -> None:
        """Write the newest step and its measurements, at most once a second."""
        self._measurements = {name: _to_json(values[name]) for name in _MEASUREMENTS if name in values}
        if time.monotonic() - self._written_at >= _MIN_INTERVAL_S:
            self._write({"state": "training", "step": step, **_estimate_end(seconds_left)})

    def end(self, step: int, outcome: str, reason: str) -> None:
        """Write how the run ended."""
        self._write({"state": "ended", "step": step, "outcome": outcome, "reason": reason, **_estimate_end(None)})

    def _write(self, fields: dict[str, Any]) -> None:
        self._written_at = time.monotonic()
        content = {**self._run, **fields, **self._measurements, "updated_at": _format_time(time.time())}
        temporary = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
        temporary.replace(self._file)


def _estimate_end(seconds_left: float | None) -> dict[str, Any]:
    if seconds_left is None:
        return {"seconds_left": None, "ends_at": None}
    return {"seconds_left": round(seconds_left, 1), "ends_at": _format_time(time.time() + seconds_left)}


def _format_time(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def _to_json(value: Any) -> Any:
    """Return NaN and infinities as text, because JSON does not have them."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
