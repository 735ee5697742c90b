"""What the simulator says of a run's own settings, in the parts that the trainer measures."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.emulate.job import Job
from simulator.layout import Layout
from simulator.parameters import parameters
from simulator.report.machines import Machine
from simulator.report.measured import Measured
from simulator.step import Prediction, predict
from trainer.config.schema import Config
from trainer.parallel.layout import resolve

COMMUNICATION = ("tensor", "context", "experts", "gather", "pipeline bubble", "data", "jitter")
"""Of the parts of a prediction: what a rank waits for others in, and nothing hides."""
STATE_BYTES = {"adamw": 12, "sgd": 8}
"""Of a checkpoint, for each parameter: weight and moments."""


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
    wanted = layout(config, run, micro)
    model = Job(config, micro, config.batch.size // wanted.dp).model
    found = predict(model, wanted, machine.system, machine.rates)
    split = _split(found, machine)
    split["checkpoint"] = _checkpoint_s(config, machine, parameters(model).total, found.step_s)
    step = sum(split.values())
    stretch = step / found.step_s
    return Predicted(step, found.low_s * stretch, found.high_s * stretch, split, found.parts, found.fits)


def layout(config: Config, run: Measured, micro: int) -> Layout:
    """The trainer's own arrangement of its ranks, in the simulator's words."""
    asked = config.parallel
    axes = resolve(asked, run.ranks, run.per_node)
    sharded = asked.strategy in ("fsdp", "hsdp")
    return Layout(
        dp=axes.dp_size,
        tp=axes.tensor,
        pp=axes.pipeline,
        virtual_stages=asked.virtual_stages if axes.pipeline > 1 and asked.schedule == "interleaved" else 1,
        schedule=asked.schedule,
        micro_batch=micro,
        global_batch=config.batch.size,
        zero=asked.zero if sharded else 0,
        shard=axes.shard if asked.strategy == "hsdp" else 0,
        sequence_parallel=axes.tensor > 1,
        recompute=asked.recompute,
        dtype=config.precision,
        offload=asked.offload,
        compiled=config.compile.mode != "none",
        prefetch=asked.prefetch,
        bucket_mb=asked.bucket_mb,
    )


def _split(found: Prediction, machine: Machine) -> dict[str, float]:
    communication = sum(found.parts.get(part, 0.0) for part in COMMUNICATION)
    own = found.step_s - communication
    beside = min(1.0, 0.5 * own / max(machine.data_s + machine.other_s, 1e-12))
    data, other = beside * machine.data_s, beside * machine.other_s
    return {"compute": own - data - other, "communication": communication, "data": data, "other": other}


def _checkpoint_s(config: Config, machine: Machine, count: int, step_s: float) -> float:
    """Of one step's share of a save: until training may go on, and for the save before where that is not done yet."""
    every = config.checkpoint.every
    if not every:
        return 0.0
    size = 1e-9 * STATE_BYTES[config.optimizer.name] * count
    wait = size / machine.wait_gb_s
    write = size / machine.write_gb_s if machine.write_gb_s else 0.0
    if not config.checkpoint.asynchronous:
        return max(wait, write) / every
    return (wait + max(0.0, write - every * step_s)) / every
