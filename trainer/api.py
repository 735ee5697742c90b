"""`Trainer` trains a torch model from Python: pass it a model, feed it batches, save and load. The CLI uses it too.

from trainer.api import Trainer
trainer = Trainer(model, strategy="fsdp", precision="bf16", folder="runs/mine")
trainer.load_checkpoint()
for batch in batches:
    trainer.train_step(batch)
trainer.save_checkpoint()
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import nn

from trainer import rng
from trainer.checkpoint.checkpoints import SAVE_TIMEOUT_S, Checkpoints
from trainer.checkpoint.folder import CHECKPOINTS_FOLDER
from trainer.checkpoint.group import RankGroup
from trainer.checkpoint.newest import GoodCheckpoint
from trainer.checkpoint.weight_formats import name_master
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.layout import resolve_layout
from trainer.config.load import to_dict
from trainer.config.models import DecoderConfig
from trainer.config.schema import (
    CheckpointConfig,
    CompileConfig,
    Config,
    OptimizerConfig,
    ParallelConfig,
    Precision,
    RunConfig,
    ScheduleConfig,
)
from trainer.data.loader import move_batch
from trainer.evaluation.equal_batches import iterate_together
from trainer.evaluation.evaluator import sum_batches
from trainer.evaluation.figures import CrossEntropySums, OwnLossSums, compute_perplexity
from trainer.life.uncaught import UncaughtErrors, recorded_start
from trainer.metrics.utilisation import read_memory_gb
from trainer.models.functional import compute_loss
from trainer.models.init import copy_local_part, fill
from trainer.models.lora import is_adapter
from trainer.models.registry import build_network
from trainer.objective import CrossEntropy, StepMeanLoss, choose_objective
from trainer.own_settings import make_own_config
from trainer.parallel.apply import parallelize
from trainer.parallel.compile import check_backend
from trainer.parallel.document_kernel import describe_document_kernel
from trainer.parallel.engine import LossFunction, Recipe
from trainer.parallel.gather import gather_weights
from trainer.parallel.mesh import Mesh
from trainer.private_tensors import describe_left_out
from trainer.replay.replays import Fetch, Replays
from trainer.step import RunningStatistics, Step, StepAbandoned, StepResult
from trainer.world import World, start

Model: TypeAlias = nn.Module | Callable[[], nn.Module]
Batch: TypeAlias = Mapping[str, torch.Tensor]

OWN_MODEL = "own_model"
"""Entry in the state of a checkpoint whose model was given as an object, with the name of its class."""


class Trainer:
    """The training of one model, as one rank sees it.

    Under torchrun, every rank creates one with the same arguments. A single process is a world of one rank.
    """

    # Only of a user's script: in a run of the CLI, its session records how it ends.
    _uncaught: UncaughtErrors | None = None

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
        best: Literal["", "loss", "perplexity", "accuracy"] = "",
        seed: int = 1,
        device: str = "auto",
    ) -> None:
        """Join the other ranks and build the engine.

        `steps` is the step at which the schedule ends. `micro_batch` is the number of samples per forward pass; None
        runs a rank's share of a batch in a single pass. `best` also keeps the best checkpoint by the `metric` that
        `save_checkpoint` is given.
        """
        config = make_own_config(
            strategy=strategy,
            precision=precision,
            optimizer=optimizer,
            schedule=schedule,
            compile=compile,
            steps=steps,
            micro_batch=micro_batch,
            checkpoint=CheckpointConfig(keep=keep, best=best),
            run=RunConfig(folder=str(folder), seed=seed, device=cast(Any, device)),
        )
        check_backend(config.compile)
        with recorded_start(_find_folder(config), int(os.environ.get("RANK", "0"))):
            world = start(device, config.run.join_timeout_s)
            self._set_up(config, world, model, loss, micro=micro_batch, weights=None)
        self._uncaught = UncaughtErrors(_find_folder(config), world.rank, self.engine.mesh.hosts, lambda: self.step)

    @classmethod
    def from_config(cls, config: Config, world: World, micro: int) -> Trainer:
        """Return a trainer for a configuration whose `auto` settings are resolved."""
        trainer = cls.__new__(cls)
        weights = partial(fill, seed=config.run.seed, device=world.device)
        trainer._set_up(config, world, lambda: build_network(config), compute_loss, micro=micro, weights=weights)
        return trainer

    def _set_up(  # noqa: PLR0913
        self, config: Config, world: World, model: Model, loss: LossFunction, *, micro: int | None, weights: Any
    ) -> None:
        self.config = config
        self.world = world
        self.layout = resolve_layout(config.parallel, world.size, world.local_size)
        self._recipe = Recipe(
            config.parallel, config.precision, config.compile, config.fp8, config.communication, config.optimizer
        )
        mesh = Mesh(
            self.layout,
            world.rank,
            world.device,
            uses_fully_shard=self._recipe.uses_fully_shard(self.layout),
            hosts=[member.host for member in world.members],
        )
        self.engine = parallelize(model, self._recipe, mesh, weights)
        if config.data.documents != "joined":
            self.engine.choices.append(
                describe_document_kernel(cast(DecoderConfig, config.model), world.device, self.layout)
            )
        rng.seed(config.run.seed, 0, self.layout.dp_rank(world.rank))
        self.checkpoints = self.open_checkpoints(_find_folder(config) / CHECKPOINTS_FOLDER)
        # A user's batches may contain ignored targets. Our own data has none if documents are joined.
        may_ignore = weights is None or config.data.documents != "joined"
        objective = choose_objective(loss, config, self.engine)
        counted = StepMeanLoss(mesh, objective) if isinstance(objective, CrossEntropy) and may_ignore else None
        samples = objective.samples if isinstance(objective, CrossEntropy) else None
        self._step = Step(self.engine, config, counted or objective, samples)
        self._step.before_update = self.checkpoints.before_update
        self._statistics = RunningStatistics(self.engine.named_buffers())
        self._measure = (
            CrossEntropySums(objective.chunk_tokens) if isinstance(objective, CrossEntropy) else OwnLossSums(objective)
        )
        self.restore_notes: list[str] = []
        """What the last `restore` could not restore, and why, or had to convert."""
        self._micro = micro
        # Only a model of our own families can be built again from the settings.
        self._own_model = self.engine.units.model if weights is None else ""
        self._last: StepResult | None = None
        self._samples = 0
        self._began = time.perf_counter()

    @property
    def step(self) -> int:
        """Optimizer steps done since the start of the run."""
        return self._step.index

    def describe(self) -> list[str]:
        """Return a line about the model's units, if they are in use, and one for each setting that was chosen."""
        units = [f"units: {self.engine.units.describe()}"] if self._recipe.uses_units(self.layout) else []
        return [*units, *self.engine.choices]

    def make_replays(self, fetch: Fetch, micro: int) -> Replays:
        """Return the replays of this run's steps (`health.replay_every`); every rank must call it."""
        return Replays(self._step, self.world, self.config.health.replay_every, fetch, micro)

    def train_step(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Run one step on this rank's share {"inputs", "targets"} of a batch; return the mean loss, on the device.

        With ignored targets and the default loss, it is this rank's part of the mean over the targets of all ranks:
        `mean_over_ranks` returns that mean.
        """
        return self.run_step(move_batch(batch, self.world.device)).loss

    def run_step(self, batch: dict[str, torch.Tensor]) -> StepResult:
        """Run one optimizer step on a batch that is already on the device, where `move_batch` brings it.

        If it raises StepAbandoned, the state is that before the step: it can be saved, but no further step can follow.
        """
        size = len(batch["inputs"])
        self._statistics.record()
        try:
            self._last = self._step.run(batch, self._micro or size)
        except StepAbandoned:
            # The state is that before the step, except for gradients inside the engine, which are not saved.
            self._step.optimizer.zero_gradients()
            self._statistics.restore(torch.ones((), device=self.world.device))
            raise
        self._statistics.restore(self._last.skipped)
        self._samples += size
        return self._last

    def evaluate(self, batches: Iterable[Batch] | Callable[[], Iterable[Batch]]) -> dict[str, float]:
        """Return the mean loss over held-out batches, without training; every rank must call it.

        Each rank passes its share, or a function that creates it; if the number of batches is not the same on all
        ranks, all of them raise ConfigError. Each batch is one forward pass. With the default loss, accuracy and
        perplexity are returned too.
        """
        group = RankGroup(self.world.rank, self.world.size, self.world.group)
        given = iterate_together(batches() if callable(batches) else batches, group)
        moved = (move_batch(batch, self.world.device) for batch in given)
        loss, targets, correct = sum_batches(self.engine, moved, self._measure, None) or (0.0, 0.0, 0.0)
        if not targets:
            message = "there is no batch with a target to evaluate on"
            raise ConfigError([ConfigProblem("batches", message, "pass at least one batch on each rank")])
        mean = loss / targets
        if not isinstance(self._measure, CrossEntropySums):
            return {"loss": mean}
        return {"loss": mean, "accuracy": correct / targets, "perplexity": compute_perplexity(mean)}

    def mean_over_ranks(self, value: torch.Tensor) -> torch.Tensor:
        """Return the mean of a value over the data-parallel ranks; every rank must call it."""
        return self.engine.mesh.mean_over_data(value)

    def metrics(self) -> dict[str, float]:
        """Return loss, rates and memory since the last call; every rank must call it.

        It waits for the device, so do not call it in every step of a fast loop.
        """
        if self._last is None:
            return {"step": float(self.step)}
        loss = float(self.mean_over_ranks(self._last.loss))
        duration_s = time.perf_counter() - self._began
        values = {
            "step": float(self.step),
            "loss": loss,
            "grad_norm": float(self._last.grad_norm),
            "skipped": float(self._last.skipped),
            "lr": self._last.rate,
            "samples_per_s": self._samples * self.layout.dp_size / duration_s,
            "memory_gb": read_memory_gb(self.world.device),
        }
        self._samples, self._began = 0, time.perf_counter()
        return values

    def save_checkpoint(self, *, metric: float | None = None, extra: Mapping[str, Any] | None = None) -> None:
        """Save everything and wait for it; raise OSError if it fails or takes more than ten minutes.

        `load_checkpoint` returns `extra`.
        """
        self.start_save(metric, extra or {})
        is_in_time = self.finish_save(SAVE_TIMEOUT_S)
        for event in self.checkpoints.poll():
            if event.kind == "failed":
                raise OSError(event.message)
        if not is_in_time:
            folder = self.checkpoints.path
            raise OSError(
                f"step {self.step} was NOT saved within {SAVE_TIMEOUT_S:g} s; check the filesystem of {folder}"
            )

    def start_save(self, metric: float | None, extra: Mapping[str, Any], timeout_s: float = SAVE_TIMEOUT_S) -> None:
        """Start a save and return, so that training can continue; `checkpoints.poll()` returns its result later.

        The save fails if an earlier one does not end within `timeout_s` seconds.
        """
        state = {
            **self._step.state(),
            "world_size": self.world.size,
            "layout": asdict(self.layout),
            "config": to_dict(self.config),
            "extra": dict(extra),
        }
        if self._own_model:
            state[OWN_MODEL] = self._own_model
        own = {"rng": rng.state(self.world.device)}
        self.checkpoints.save(self.step, self._step.saved_tensors(), state, metric, own, timeout_s=timeout_s)

    def finish_save(self, timeout: float | None) -> bool:
        """Wait for the save under way, if there is one; return False if it takes longer than `timeout` seconds."""
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
        # Checkpoints from before this entry have no private tensors.
        is_same_layout = state.get("layout") == asdict(self.layout)
        tensors = self._step.tensors()
        if not is_same_layout:
            private = self._step.private_tensors()
            tensors = {name: value for name, value in tensors.items() if name not in private}
        saved = self.checkpoints.read_types(checkpoint)
        left_out = describe_left_out(saved, self.world.rank, tensors, is_same_layout=is_same_layout)
        converted = self.load_tensors(self.checkpoints, checkpoint, tensors)
        self.restore_notes = [note for note in (left_out, converted) if note]
        self._step.load_state(state)
        own = self.checkpoints.read_own(checkpoint)
        if own is None:
            rng.seed(self.config.run.seed, self.step, self.layout.dp_rank(self.world.rank))
        else:
            rng.restore(own["rng"], self.world.device)
        extra: dict[str, Any] = state["extra"]
        return extra

    def check_folder(self) -> None:
        """Check that a checkpoint can be written, so that a run fails before its first step and not an hour later."""
        self.checkpoints.check_folder(self._step.tensors())

    def prepare_saves(self) -> None:
        """Prepare the first save; call it after the first step, so that the first step does not wait for it."""
        # If memory is short or the writer cannot start, the save itself reports it.
        with suppress(OSError):
            self.checkpoints.prepare(self._step.saved_tensors())

    def open_checkpoints(self, folder: Path) -> Checkpoints:
        """Return the checkpoints in a folder, with the settings of this run."""
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
        """Return weights, their fp32 copies if there are any, and buffers under their names in a checkpoint."""
        tensors = self._step.tensors()
        masters = {name_master(name) for name, _ in self.engine.named_parameters()}
        return {name: t for name, t in tensors.items() if name.startswith(("model.", "buffer.")) or name in masters}

    def load_tensors(
        self, checkpoints: Checkpoints, checkpoint: GoodCheckpoint, tensors: dict[str, Any], *, partial: bool = False
    ) -> str:
        """Load into tensors of this trainer; return a line for the log if weights had to be converted."""
        note = checkpoints.load(checkpoint, tensors, partial=partial)
        self._step.after_load({name for name in checkpoints.read_types(checkpoint) if name in tensors})
        return note

    @torch.no_grad()
    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Set all parameters but those of LoRA to whole tensors of these names; fp32 copies take all bits of them."""
        tensors = self._step.tensors()
        for name, _ in self.engine.named_parameters():
            if not is_adapter(name):
                target = tensors.get(name_master(name), tensors[f"model.{name}"])
                copy_local_part(weights[name].to(target.dtype), target)
        self._step.after_load(())

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return the whole model under its own names, in host memory on rank 0, to load into a model or to export.

        Every rank must call it; all except rank 0 get an empty dict.
        """
        return gather_weights(self.engine)

    def close(self, timeout_s: float = SAVE_TIMEOUT_S) -> None:
        """Wait up to `timeout_s` seconds for the save under way, and leave the process group.

        A script also records that it has finished, unless an error is on its way through a `finally` that calls this:
        then the error is recorded, and the other ranks, which may wait for this one elsewhere, are not waited for.
        """
        is_failing = self._uncaught is not None and sys.exc_info()[1] is not None
        self.checkpoints.close(timeout_s)
        if self._uncaught is not None and not is_failing:
            self._uncaught.close()
        if not is_failing or self.world.size == 1:
            self.world.close()


def _find_folder(config: Config) -> Path:
    return Path(config.run.folder.format(name=config.name))
