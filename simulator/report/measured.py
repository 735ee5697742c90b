"""A run of the trainer as its folder tells it: its settings, its ranks, and where the time of a step went."""

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
from trainer.report.summary import end, middle

PARTS = ("compute", "communication", "data", "checkpoint", "other")
SHEET = "data sheet of "
"""How the trainer says whose peak its utilisation is relative to."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    folder: Path
    name: str
    config: Config
    ranks: int
    nodes: int
    micro: int
    end: str
    """finished, or how else the run ended."""
    reached: int
    """The last step that is known."""
    lines: int
    """Records that the figures are from."""
    step_s: float
    split: dict[str, float]
    """Seconds of a step by part; `compute` has the communication in it where `communication` is missing."""
    mfu: float | None
    slowest: float | None
    """Own time of the slowest rank over that of the median one."""
    device: str
    """cpu, the GPU's name, or nothing where the run does not say."""
    cpu: str
    """The kind of processor; nothing where the run does not say, as those before it was recorded."""
    matmul_gflops: float | None
    """Of one rank, as the run tried it."""

    @property
    def samples_per_s(self) -> float:
        return self.config.batch.size / self.step_s

    @property
    def finished(self) -> bool:
        return self.end == "finished"

    @property
    def per_node(self) -> int:
        return self.ranks // self.nodes


def measured(folder: Path) -> Measured:
    """ConfigError where there is no run, or one that never took a step."""
    run, config = _opened(folder)
    joined = (run.of("joined") or [{}])[-1]
    ranks, nodes = int(joined.get("world_size", len(run.ranks))), len(joined.get("hosts", [])) or 1
    # A run that went on with other ranks is judged by its last life.
    lines = [line for line in run.lines if line.get("time", 0.0) >= joined.get("time", 0.0)]
    steady = lines[len(lines) // 2 :]
    if not steady or not all("step_s" in line for line in steady):
        message = f"{folder} has no steps in metrics/rank-*.jsonl; allowed: a run that trained"
        raise _problem(message, "wait for its first steps, or name another")
    ended: dict[str, Any] = end(run)
    peak = (run.of("peak") or [{}])[-1]
    split = _split(steady)
    return Measured(
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
        mfu=middle([line for line in steady if line.get("mfu")], "mfu"),
        slowest=_slowest(run, ranks),
        device=_device(config, peak, joined),
        cpu=str(joined.get("cpu", "")),
        matmul_gflops=peak["achieved"] / 1e9 if peak.get("achieved") else None,
    )


def _opened(folder: Path) -> tuple[Run, Config]:
    try:
        run = open_run(folder)
    except NoRunError as bad:
        raise _problem(f"{bad}; allowed: folders of runs", "they lie in runs/ where the trainer was started") from None
    if not run.config_text:
        raise _problem(f"{folder} has no config.yaml; allowed: a run that got as far as its settings", "name another")
    return run, load(str(folder / "config.yaml"), [])


def _micro(run: Run, config: Config, ranks: int) -> int:
    found = (run.of("built") or [{}])[-1].get("micro") or config.batch.micro
    return config.batch.size // ranks if found == "auto" else int(found)


def _split(lines: Sequence[Line]) -> dict[str, float]:
    """The middle half of the steps, so that a disturbed one counts for nothing; saves are rare: all of them count."""
    ranked = sorted(lines, key=lambda line: line["step_s"] - line.get("checkpoint_s", 0.0))
    usual = ranked[len(ranked) // 4 : max(len(ranked) // 4 + 1, 3 * len(ranked) // 4)]
    names = [part for part in PARTS if all(line.get(f"{part}_s") is not None for line in lines)]
    return {part: fmean(line[f"{part}_s"] for line in (lines if part == "checkpoint" else usual)) for part in names}


def _slowest(run: Run, ranks: int) -> float | None:
    times = [middle(lines[len(lines) // 2 :], "own_s") for rank, lines in run.ranks.items() if rank < ranks]
    known = [seconds for seconds in times if seconds]
    return max(known) / median(known) if len(known) > 1 else None


def _device(config: Config, peak: dict[str, Any], joined: dict[str, Any]) -> str:
    source = str(peak.get("source", ""))
    if source.startswith(SHEET):
        return source.removeprefix(SHEET)
    return "cpu" if "cpu" in (config.run.device, joined.get("device")) else ""


def _problem(message: str, fix: str) -> ConfigError:
    return ConfigError([ConfigProblem("RUN", message, fix)])
