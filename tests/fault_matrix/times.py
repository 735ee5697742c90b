"""Times to detect and to recover from a fault, recorded by the tests that cause it.

    MUSTER_RECORD_FAULTS=1 .venv/bin/python -m pytest tests/faults/test_cut_off_node.py

stores them in times.json, from which docs/faults.md gets its figures (`make golden`).
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

FILE = Path(__file__).with_name("times.json")
VARIABLE = "MUSTER_RECORD_FAULTS"


@dataclass(frozen=True)
class Times:
    """What a test measured about a row; None if it does not measure it."""

    row: int
    test: str
    detect_s: float | None
    recover_s: float | None
    date: str


def record(row: int, *, detect_s: float | None = None, recover_s: float | None = None, file: Path = FILE) -> None:
    """Store the times of the running test, in seconds after the fault, if the environment asks for it."""
    if not os.environ.get(VARIABLE):
        return
    # pytest sets it to `path::test[parameters] (call)`.
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0].partition("[")[0]
    date = datetime.now(UTC).date().isoformat()
    measured = Times(row, test, _round(detect_s), _round(recover_s), date)
    others = [times for times in read_times(file) if (times.row, times.test) != (row, test)]
    entries = sorted([*others, measured], key=lambda times: (times.row, times.test))
    lines = [json.dumps(asdict(times)) for times in entries]
    file.write_text("[\n  " + ",\n  ".join(lines) + "\n]\n")


def read_times(file: Path = FILE) -> list[Times]:
    """Return all recorded times."""
    return [Times(**entry) for entry in json.loads(file.read_text())] if file.exists() else []


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
