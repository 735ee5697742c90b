"""What the runs of benchmarks/loss_curves.py say: how far each way to compute is from plain arithmetic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.figures import Figure

BOUND_PERCENT = 1.0
REFERENCE = "reference"
OTHER_SEED = "reference with seed 2"
"""The reference with other initial weights and another order of the text: how far two correct runs are apart."""


@dataclass(frozen=True)
class Run:
    """The losses of a run."""

    losses: list[float]
    """Of each step, on text that the run has not seen before."""
    held_out: float
    """After the last step, on text that all runs are evaluated on and none is trained on."""
    rate: float
    """Factor of the preset's learning rate."""

    @property
    def last(self) -> float:
        """The mean loss of the last tenth of the steps."""
        return fmean(self.losses[-max(1, len(self.losses) // 10) :])


def compare_runs(case: str, runs: Mapping[str, Run]) -> list[Figure]:
    """Return the losses at the end of each run, and how far they are from those of the reference.

    The reference with another seed has no bound: a difference that is not larger than its own says nothing.
    """
    usual = runs[REFERENCE]
    figures = [
        Figure(f"{case}: held-out loss, {REFERENCE}", usual.held_out, ""),
        Figure(f"{case}: loss of the last steps, {REFERENCE}", usual.last, ""),
    ]
    for label, run in runs.items():
        if label == REFERENCE:
            continue
        bound = None if label == OTHER_SEED else BOUND_PERCENT
        figures += [
            _compare(f"{case}: held-out loss, {label}", run.held_out, usual.held_out, bound),
            _compare(f"{case}: loss of the last steps, {label}", run.last, usual.last, bound),
        ]
    return figures


def check_text(tokens: int, held_out_share: float, tokens_per_step: int, steps: int) -> None:
    """Exit if a run would read text twice: a model that knows its text by heart says nothing about arithmetic."""
    available = int(tokens * (1 - held_out_share)) // tokens_per_step
    if steps > available:
        raise SystemExit(f"the text is enough for {available} steps, not for {steps}; set --steps {available} or lower")


def read_runs(path: Path | None) -> dict[str, dict[str, Run]]:
    """Return the runs that an earlier call has written to the file, if there is one."""
    if path is None or not path.exists():
        return {}
    stored = json.loads(path.read_text())["runs"]
    return {case: {label: Run(**run) for label, run in ways.items()} for case, ways in stored.items()}


def write_runs(path: Path, runs: Mapping[str, Mapping[str, Run]], figures: list[Figure]) -> None:
    """Write runs and figures to a file."""
    stored = {case: {label: asdict(run) for label, run in ways.items()} for case, ways in runs.items()}
    path.write_text(json.dumps({"figures": [asdict(figure) for figure in figures], "runs": stored}))


def _compare(name: str, loss: float, usual: float, bound: float | None) -> Figure:
    """Return the difference in per cent, with its sign in the reference column: a lower loss also counts."""
    difference = (loss / usual - 1) * 100
    return Figure(name, abs(difference), "%", f"{loss:.4f}, {difference:+.2f} % of {usual:.4f}", bound)
