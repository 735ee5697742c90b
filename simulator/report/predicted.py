"""What the simulator says of a run's own settings, in the parts that the trainer measures."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.job import Job
from simulator.machines.compared import Machine
from simulator.memory.peak import fits
from simulator.parameters import checkpoint_gb
from simulator.report.measured import Measured
from simulator.step.prediction import Prediction, predict
from simulator.trainer_layout import layout
from trainer.config.schema import Config

COMMUNICATION = ("tensor", "context", "experts", "gather", "pipeline bubble", "data", "jitter")
"""Of the parts of a prediction: what a rank waits for others in, and nothing hides."""


@dataclass(frozen=True)
class Predicted:
    step_s: float
    low_s: float
    high_s: float
    split: dict[str, float]
    parts: dict[str, float]
    fits: bool


def predicted(run: Measured, machine: Machine, config: Config | None = None, micro: int = 0) -> Predicted:
    """Of the run as it was, or with other settings."""
    config, micro = config or run.config, micro or run.micro
    wanted = layout(config, run.ranks, run.per_node, micro)
    model = Job(config, micro, config.batch.size // wanted.dp).model
    found = predict(model, wanted, machine.system, machine.rates)
    split = _split(found, machine)
    split["checkpoint"] = _checkpoint_s(config, machine, checkpoint_gb(model, config.optimizer.name), found.step_s)
    step = sum(split.values())
    stretch = step / found.step_s
    is_fitting = fits(found.memory, machine.system.gpu.runs_ahead)
    return Predicted(step, found.low_s * stretch, found.high_s * stretch, split, found.parts, is_fitting)


def _split(found: Prediction, machine: Machine) -> dict[str, float]:
    communication = sum(found.parts.get(part, 0.0) for part in COMMUNICATION)
    own = found.step_s - communication
    beside = min(1.0, 0.5 * own / max(machine.data_s + machine.other_s, 1e-12))
    data, other = beside * machine.data_s, beside * machine.other_s
    return {"compute": own - data - other, "communication": communication, "data": data, "other": other}


def _checkpoint_s(config: Config, machine: Machine, size: float, step_s: float) -> float:
    """A step's share of a save of `size` GB: until training goes on, and for the one before where that is not done."""
    every = config.checkpoint.every
    if not every:
        return 0.0
    wait = size / machine.wait_gb_s
    write = size / machine.write_gb_s if machine.write_gb_s else 0.0
    if not config.checkpoint.asynchronous:
        return max(wait, write) / every
    return (wait + max(0.0, write - every * step_s)) / every
