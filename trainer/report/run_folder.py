"""Read the folder of a run, even if the run was killed or is still running."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainer.life.failure import Failure, list_first_causes, read_failures
from trainer.metrics.json_lines import read_lines

Line = dict[str, Any]


class NoRunError(Exception):
    """Raised if a folder does not belong to a run; the message says what is missing."""


@dataclass
class Run:
    """The records of a run."""

    folder: Path
    config_text: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    ranks: dict[int, list[Line]] = field(default_factory=dict)
    profiles: list[Line] = field(default_factory=list)
    timelines: dict[int, Line] = field(default_factory=dict)
    """What each rank did in the last step that it profiled."""
    evaluations: list[Line] = field(default_factory=list)
    texts: list[Line] = field(default_factory=list)
    """How the model continued the prompts of `evaluation.prompts`, by step."""
    events: list[Line] = field(default_factory=list)
    outcome: dict[str, Any] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    """The first cause of each attempt that failed."""

    @property
    def name(self) -> str:
        return str(self.config.get("name") or self.folder.name)

    @property
    def lines(self) -> list[Line]:
        """The lines of rank 0: loss and throughput are the same on all ranks."""
        return self.ranks.get(0) or next(iter(self.ranks.values()), [])

    @property
    def unit(self) -> str:
        units = ("tokens", "images", "samples")
        return next((unit for unit in units if any(f"{unit}_per_s" in line for line in self.lines[-1:])), "samples")

    def events_of(self, kind: str) -> list[Line]:
        return [event for event in self.events if event.get("event") == kind]


def open_run(folder: Path) -> Run:
    """Read the records of a run, or raise NoRunError."""
    if not folder.is_dir():
        raise NoRunError(f"{folder} is not a folder; give the folder of a run, such as runs/NAME")
    run = Run(folder, config_text=_read_text(folder / "config.yaml"))
    run.config = _parse_mapping(run.config_text)
    for path in sorted((folder / "metrics").glob("rank-*.jsonl")):
        lines = [line for line in read_lines(path) if isinstance(line.get("step"), int)]
        if lines:
            run.ranks[int(path.stem.removeprefix("rank-"))] = lines
    run.profiles = read_lines(folder / "metrics" / "communication-00000.jsonl")
    for path in sorted((folder / "metrics").glob("timeline-*.json")):
        timeline = _parse_mapping(_read_text(path))
        if isinstance(timeline.get("step"), int) and isinstance(timeline.get("events"), list):
            run.timelines[int(path.stem.removeprefix("timeline-"))] = timeline
    run.evaluations = read_lines(folder / "metrics" / "evaluation-00000.jsonl")
    run.texts = read_lines(folder / "metrics" / "texts-00000.jsonl")
    run.events = [event for event in read_lines(folder / "events.jsonl") if "time" in event]
    run.outcome = _parse_mapping(_read_text(folder / "outcome.json"))
    run.failures = list_first_causes(read_failures(folder))
    # A script with a model of its own records only how it ended.
    if not (run.ranks or run.events or run.outcome):
        message = f"{folder} has neither metrics/rank-*.jsonl nor events.jsonl nor outcome.json"
        raise NoRunError(f"{message}; give the folder of a run, such as runs/NAME")
    return run


def _read_text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _parse_mapping(text: str) -> dict[str, Any]:
    """Return a JSON or YAML mapping; an incomplete file is treated as empty, so that the report can be made."""
    try:
        tree = json.loads(text) if text.startswith("{") else yaml.safe_load(text)
    except (ValueError, yaml.YAMLError):
        return {}
    return tree if isinstance(tree, dict) else {}
