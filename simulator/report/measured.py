"""Read a finished or running run of the trainer from its folder: settings, ranks, and where the time of a step went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.load import load
from trainer.config.schema import Config
from trainer.report.run_folder import Line, NoRunError, Run, open_run
from trainer.report.summary import find_end, median_of

PARTS = ("compute", "communication", "data", "checkpoint", "other")
PEAK_SOURCE_PREFIX = "data sheet of "
"""Prefix of the trainer's `peak` event when the utilization is relative to a data sheet; the device follows."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """A run of the trainer as it was measured."""

    folder: Path
    name: str
    config: Config
    ranks: int
    nodes: int
    micro: int
    end: str
    """`finished`, or how else the run ended."""
    reached: int
    """The last recorded step."""
    lines: int
    """Number of metric records that the figures are from."""
    step_s: float
    split: dict[str, float]
    """Seconds of a step by part; without `communication`, `compute` includes it."""
    mfu: float | None
    slowest: float | None
    """Own time of the slowest rank over that of the median rank."""
    device: str
    """`cpu`, the GPU's name, or empty if the run did not record it."""
    cpu: str
    """Processor model; empty if the run did not record it."""
    matmul_gflops: float | None
    """Matrix product rate of one rank in the run's own trial."""

    @property
    def samples_per_s(self) -> float:
        return self.config.batch.size / self.step_s

    @property
    def finished(self) -> bool:
        return self.end == "finished"

    @property
    def per_node(self) -> int:
        return self.ranks // self.nodes


def read_run(folder: Path) -> MeasuredRun:
    """Return the run in a folder; raise ConfigError if there is none or it never took a step."""
    run, config = _open(folder)
    joined = (run.events_of("joined") or [{}])[-1]
    ranks, nodes = int(joined.get("world_size", len(run.ranks))), len(joined.get("hosts", [])) or 1
    # A run that was resumed with a different number of ranks is judged by its last part.
    lines = [line for line in run.lines if line.get("time", 0.0) >= joined.get("time", 0.0)]
    steady = lines[len(lines) // 2 :]
    if not steady or not all("step_s" in line for line in steady):
        message = f"{folder} has no steps in metrics/rank-*.jsonl; allowed: a run that trained"
        raise _error(message, "wait for its first steps, or name another run")
    ended: dict[str, Any] = find_end(run)
    peak = (run.events_of("peak") or [{}])[-1]
    split = _split(steady)
    return MeasuredRun(
        folder=folder,
        name=run.name,
        config=config,
        ranks=ranks,
        nodes=nodes,
        micro=_micro(run, config, ranks),
        end=ended["outcome"],
        reached=ended["step"] if "step" in ended else lines[-1]["step"],
        lines=len(steady),
        step_s=sum(split.values()),
        split=split,
        mfu=median_of([line for line in steady if line.get("mfu")], "mfu"),
        slowest=_slowest(run, ranks),
        device=_device(config, peak, joined),
        cpu=str(joined.get("cpu", "")),
        matmul_gflops=peak["achieved"] / 1e9 if peak.get("achieved") else None,
    )


def _open(folder: Path) -> tuple[Run, Config]:
    try:
        run = open_run(folder)
    except NoRunError as error:
        raise ConfigError([ConfigProblem("RUN", str(error))]) from None
    if not run.config_text:
        raise _error(f"{folder} has no config.yaml; allowed: a run that wrote its settings", "name another run")
    return run, load(str(folder / "config.yaml"), [])


def _micro(run: Run, config: Config, ranks: int) -> int:
    micro = (run.events_of("built") or [{}])[-1].get("micro") or config.batch.micro
    return config.batch.size // ranks if micro == "auto" else int(micro)


def _split(lines: Sequence[Line]) -> dict[str, float]:
    """Return the mean of the middle half of the steps, without disturbed ones; rare checkpoint saves all count."""
    ranked = sorted(lines, key=lambda line: line["step_s"] - line.get("checkpoint_s", 0.0))
    typical = ranked[len(ranked) // 4 : max(len(ranked) // 4 + 1, 3 * len(ranked) // 4)]
    names = [part for part in PARTS if all(line.get(f"{part}_s") is not None for line in lines)]
    return {part: fmean(line[f"{part}_s"] for line in (lines if part == "checkpoint" else typical)) for part in names}


def _slowest(run: Run, ranks: int) -> float | None:
    times = [median_of(lines[len(lines) // 2 :], "own_s") for rank, lines in run.ranks.items() if rank < ranks]
    measured = [seconds for seconds in times if seconds]
    return max(measured) / median(measured) if len(measured) > 1 else None


def _device(config: Config, peak: dict[str, Any], joined: dict[str, Any]) -> str:
    source = str(peak.get("source", ""))
    if source.startswith(PEAK_SOURCE_PREFIX):
        return source.removeprefix(PEAK_SOURCE_PREFIX)
    return "cpu" if "cpu" in (config.run.device, joined.get("device")) else ""


def _error(message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem("RUN", message, fix)])
