"""Predict a measured run from its own settings, split into the parts that the trainer measures."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.job import Job, layout_from_config
from simulator.memory.peak import fits_in_memory
from simulator.parameters import checkpoint_gb
from simulator.report.machines import RunMachine
from simulator.report.measured import MeasuredRun
from simulator.step.prediction import Prediction, predict
from trainer.config.schema import Config

COMMUNICATION = ("tensor", "context", "experts", "gather", "pipeline bubble", "data", "jitter")
"""Parts of a prediction in which a rank waits for others and that no compute hides."""


@dataclass(frozen=True)
class PredictedRun:
    """A run as predicted: its step with an 80 % interval, and the step's parts in seconds."""

    step_s: float
    low_s: float
    high_s: float
    split: dict[str, float]
    parts: dict[str, float]
    fits: bool


def predict_run(run: MeasuredRun, machine: RunMachine, config: Config | None = None, micro: int = 0) -> PredictedRun:
    """Return the prediction for the run as it was, or with other settings."""
    config, micro = config or run.config, micro or run.micro
    run_layout = layout_from_config(config, run.ranks, run.per_node, micro)
    model = Job(config, micro, config.batch.size // run_layout.dp).model
    prediction = predict(model, run_layout, machine.system, machine.rates)
    split = _split(prediction, machine)
    split["checkpoint"] = _checkpoint_s(config, machine, checkpoint_gb(model, config.optimizer), prediction.step_s)
    step = sum(split.values())
    stretch = step / prediction.step_s
    is_fitting = fits_in_memory(prediction.memory, machine.system.gpu.launches_ahead)
    low_s, high_s = prediction.low_s * stretch, prediction.high_s * stretch
    return PredictedRun(step, low_s, high_s, split, prediction.parts, is_fitting)


def _split(prediction: Prediction, machine: RunMachine) -> dict[str, float]:
    communication = sum(prediction.parts.get(part, 0.0) for part in COMMUNICATION)
    own = prediction.step_s - communication
    overhead_scale = min(1.0, 0.5 * own / max(machine.data_s + machine.other_s, 1e-12))
    data, other = overhead_scale * machine.data_s, overhead_scale * machine.other_s
    return {"compute": own - data - other, "communication": communication, "data": data, "other": other}


def _checkpoint_s(config: Config, machine: RunMachine, size: float, step_s: float) -> float:
    """Return a step's share of a save of `size` GB: the wait for this save, and for the previous one if unfinished."""
    every = config.checkpoint.interval
    if not every:
        return 0.0
    wait = size / machine.wait_gb_s
    write = size / machine.write_gb_s if machine.write_gb_s else 0.0
    if not config.checkpoint.asynchronous:
        return max(wait, write) / every
    return (wait + max(0.0, write - every * step_s)) / every
