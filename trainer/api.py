"""Training as an object: give it a model, feed it batches, save and load. `python -m trainer` is built on it too.

from trainer.api import Trainer

trainer = Trainer(model, strategy="fsdp", precision="bf16", folder="runs/mine")
trainer.load_checkpoint()
for batch in batches:
    trainer.train_step(batch)
trainer.save_checkpoint()
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast, get_args

import torch
from torch import nn

from trainer import rng
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.folder import CHECKPOINTS_FOLDER
from trainer.checkpoint.newest import GoodCheckpoint
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.layout import resolve_layout
from trainer.config.load import to_dict
from trainer.config.schema import (
    CheckpointConfig,
    CompileConfig,
    Config,
    MlpConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    Precision,
    RunConfig,
    ScheduleConfig,
)
from trainer.metrics.utilisation import memory_gb
from trainer.models.functional import compute_loss
from trainer.models.init import fill
from trainer.models.registry import build_model
from trainer.parallel.apply import parallelize
from trainer.parallel.engine import LossFunction, Recipe
from trainer.parallel.mesh import Mesh
from trainer.statistics import Statistics
from trainer.step import Step, StepResult
from trainer.step_mean import StepMean
from trainer.world import World, start

Model: TypeAlias = nn.Module | Callable[[], nn.Module]


class Trainer:
    """One rank's view: under torchrun every rank makes one with the same arguments; alone it is a world of one."""

    def __init__(  # noqa: PLR0913
        self,
        model: Model,
        *,
        loss: LossFunction = compute_loss,
        strategy: str | ParallelConfig = "single",
        precision: Precision = "fp32",
        optimizer: OptimizerConfig | None = None,
        schedule: ScheduleConfig | None = None,
        compile: CompileConfig | None = None,
        steps: int = 1000,
        micro_batch: int | None = None,
        folder: str | Path = "runs/own",
        keep: int = 3,
        seed: int = 1,
        device: str = "auto",
    ) -> None:
        """`steps` is where the schedule ends; `micro_batch` cuts a rank's share of a batch, None runs it whole."""
        _check(precision, optimizer, schedule)
        config = Config(
            name=Path(folder).name,
            model=cast(ModelConfig, MlpConfig()),  # the model is given: nothing reads this
            steps=steps,
            optimizer=optimizer or OptimizerConfig(),
            schedule=schedule or ScheduleConfig(),
            precision=precision,
            parallel=_parallel(strategy),
            compile=compile or CompileConfig(),
            checkpoint=CheckpointConfig(keep=keep),
            run=RunConfig(folder=str(folder), seed=seed, device=cast(Any, device)),
        )
        self._set_up(config, start(device, config.run.join_timeout_s), model, loss, micro=micro_batch, weights=None)

    @classmethod
    def of(cls, config: Config, world: World, micro: int) -> Trainer:
        """The trainer of a configuration whose strategy and micro-batch are settled."""
        trainer = cls.__new__(cls)
        weights = partial(fill, seed=config.run.seed, device=world.device)
        trainer._set_up(config, world, lambda: build_model(config.model), compute_loss, micro=micro, weights=weights)
        return trainer

    def _set_up(  # noqa: PLR0913
        self, config: Config, world: World, model: Model, loss: LossFunction, *, micro: int | None, weights: Any
    ) -> None:
        self.config = config
        self.world = world
        self.layout = resolve_layout(config.parallel, world.size, world.local_size)
        recipe = Recipe(config.parallel, config.precision, config.compile)
        mesh = Mesh(self.layout, world.rank, world.device, is_sharded=recipe.is_sharded(self.layout))
        self.engine = parallelize(model, recipe, mesh, weights)
        rng.seed(config.run.seed, 0, self.layout.dp_rank(world.rank))
        self.checkpoints = self.checkpoints_in(Path(config.run.folder.format(name=config.name)) / CHECKPOINTS_FOLDER)
        # Batches of one's own may leave targets out; our data never does, and need not be counted.
        is_counted = loss is compute_loss and weights is None
        self._step = Step(self.engine, config, StepMean(mesh) if is_counted else loss)
        self._step.before_update = self.checkpoints.before_update
        self._statistics = Statistics(self.engine.named_buffers())
        self._micro = micro
        self._last: StepResult | None = None
        self._samples = 0
        self._began = time.perf_counter()

    @property
    def step(self) -> int:
        """Optimizer steps done since the start of the run."""
        return self._step.index

    def train_step(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """One optimizer step on this rank's share {"inputs", "targets"}; its mean loss, still on the device."""
        here = {name: tensor.to(self.world.device, non_blocking=True) for name, tensor in batch.items()}
        return self.run_step(here).loss

    def run_step(self, batch: dict[str, torch.Tensor]) -> StepResult:
        size = len(batch["inputs"])
        self._statistics.note()
        self._last = self._step.run(batch, self._micro or size)
        self._statistics.put_back(self._last.skipped)
        self._samples += size
        return self._last

    def mean_over_ranks(self, value: torch.Tensor) -> torch.Tensor:
        """Over the ranks that see different samples; every rank must call it."""
        return self.engine.mesh.mean_over_data(value)

    def metrics(self) -> dict[str, float]:
        """Since the last call; waits for the device, so not for every step of a fast loop. Every rank must call it."""
        if self._last is None:
            return {"step": float(self.step)}
        loss = float(self.mean_over_ranks(self._last.loss))
        took = time.perf_counter() - self._began
        found = {
            "step": float(self.step),
            "loss": loss,
            "grad_norm": float(self._last.grad_norm),
            "skipped": float(self._last.skipped),
            "lr": self._last.rate,
            "samples_per_s": self._samples * self.layout.dp_size / took,
            "memory_gb": memory_gb(self.world.device),
        }
        self._samples, self._began = 0, time.perf_counter()
        return found

    def save_checkpoint(self, *, metric: float | None = None, extra: Mapping[str, Any] | None = None) -> None:
        """Save everything, wait for it, raise OSError if it failed. `extra` is given back by `load_checkpoint`."""
        self.start_save(metric, extra or {})
        self.finish_save(None)
        for event in self.checkpoints.poll():
            if event.kind == "failed":
                raise OSError(event.message)

    def start_save(self, metric: float | None, extra: Mapping[str, Any]) -> None:
        """Training may go on at once; `checkpoints.poll()` says later what became of it."""
        state = {
            **self._step.state(),
            "world_size": self.world.size,
            "config": to_dict(self.config),
            "extra": dict(extra),
        }
        own = {"rng": rng.state(self.world.device)}
        self.checkpoints.save(self.step, self._step.saved_tensors(), state, metric, own)

    def finish_save(self, timeout: float | None) -> bool:
        """Wait for the save under way, if there is one; false if it took longer."""
        self.checkpoints.before_update()
        return self.checkpoints.wait(timeout)

    def load_checkpoint(self) -> dict[str, Any] | None:
        """Load the newest good checkpoint of the folder, whatever world size or strategy wrote it.

        Return its `extra`, or None if there is no checkpoint.
        """
        checkpoint = self.checkpoints.newest()
        return None if checkpoint is None else self.restore(checkpoint)

    def restore(self, checkpoint: GoodCheckpoint) -> dict[str, Any]:
        """Load this checkpoint and return its `extra`."""
        state = self.checkpoints.read_state(checkpoint)
        self.checkpoints.load(checkpoint, self._step.tensors())
        self._step.load_state(state)
        own = self.checkpoints.read_own(checkpoint)
        if own is None:
            rng.seed(self.config.run.seed, self.step, self.layout.dp_rank(self.world.rank))
        else:
            rng.restore(own["rng"], self.world.device)
        extra: dict[str, Any] = state["extra"]
        return extra

    def check_folder(self) -> None:
        """Can a checkpoint be written? Said before the first step rather than after the first hour."""
        self.checkpoints.check_folder(self._step.tensors())

    def prepare_saves(self) -> None:
        """Plan, buffer and writer process of the first save; after the first step, which need not wait for them."""
        # Where there is no memory or no process for it now, the save itself will say so.
        with suppress(OSError):
            self.checkpoints.prepare(self._step.saved_tensors())

    def checkpoints_in(self, folder: Path) -> Checkpoints:
        settings = self.config.checkpoint
        return Checkpoints(
            folder,
            rank=self.world.rank,
            world_size=self.world.size,
            group=self.world.group,
            keep=settings.keep,
            best=settings.best,
            verify=settings.verify,
            asynchronous=settings.asynchronous,
        )

    def model_tensors(self) -> dict[str, torch.Tensor]:
        """Weights and buffers under their names in a checkpoint."""
        return {n: t for n, t in self._step.tensors().items() if n.startswith(("model.", "buffer."))}

    def close(self) -> None:
        """Finish the save under way and leave the world."""
        self.checkpoints.close()
        self.world.close()


def _check(precision: str, optimizer: object, schedule: object) -> None:
    problems = []
    if precision not in get_args(Precision):
        fix = f"use one of {', '.join(get_args(Precision))}"
        problems.append(ConfigProblem("precision", f"{precision!r} is none", fix))
    for name, value, kind in (("optimizer", optimizer, OptimizerConfig), ("schedule", schedule, ScheduleConfig)):
        if value is not None and not isinstance(value, kind):
            fix = f"give trainer.config.schema.{kind.__name__}(...)"
            problems.append(ConfigProblem(name, f"is a {type(value).__name__}", fix))
    if problems:
        raise ConfigError(problems)


def _parallel(strategy: str | ParallelConfig) -> ParallelConfig:
    if isinstance(strategy, ParallelConfig):
        return strategy
    names = ("single", "ddp", "fsdp", "hsdp")
    if strategy not in names:
        message = f"{strategy!r} is no strategy for a model of your own"
        raise ConfigError([ConfigProblem("strategy", message, f"use one of {', '.join(names)}, or a ParallelConfig")])
    return replace(ParallelConfig(), strategy=cast(Any, strategy))
