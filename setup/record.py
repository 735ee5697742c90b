"""What each phase cost: shown at the end, and kept as JSON for the demo and the benchmarks."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path


@dataclass
class Outcome:
    phase: str
    state: str = "failed"
    seconds: float = 0.0


@dataclass
class Record:
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    outcomes: list[Outcome] = field(default_factory=list)

    @contextmanager
    def timed(self, phase: str) -> Iterator[Outcome]:
        outcome = Outcome(phase)
        self.outcomes.append(outcome)
        begin = time.monotonic()
        try:
            yield outcome
        finally:
            outcome.seconds = round(time.monotonic() - begin, 3)

    @property
    def seconds(self) -> float:
        return sum(outcome.seconds for outcome in self.outcomes)

    def summary(self) -> str:
        if all(outcome.state == "cached" for outcome in self.outcomes if outcome.phase != "preflight"):
            return f"setup: everything is there ({self.seconds:.1f} s)"
        rows = [f"{outcome.phase:<10} {outcome.seconds:7.1f}  {outcome.state}" for outcome in self.outcomes]
        return "\n".join([f"{'phase':<10} seconds  state", *rows, f"{'total':<10} {self.seconds:7.1f}"])

    def write(self, path: Path) -> None:
        content = {
            "started": self.started.isoformat(timespec="seconds"),
            "seconds": round(self.seconds, 3),
            "phases": {
                outcome.phase: {"seconds": outcome.seconds, "state": outcome.state} for outcome in self.outcomes
            },
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".new")
        unfinished.write_text(json.dumps(content, indent=2) + "\n")
        unfinished.rename(path)


def started_engine(path: Path) -> bool:
    """Whether the run that wrote this record had to start the Docker engine."""
    try:
        return bool(json.loads(path.read_text())["phases"]["docker"]["state"] == "done")
    except (OSError, ValueError, KeyError):
        return False
