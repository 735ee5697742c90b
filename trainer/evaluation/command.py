"""`python -m trainer evaluate RUN`: evaluate a checkpoint of a run, with its own settings or changed ones."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from trainer.checkpoint.checkpoints import Checkpoints
from trainer.checkpoint.newest import GoodCheckpoint
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.layout import resolve_layout
from trainer.config.load import change
from trainer.config.schema import Config
from trainer.data.registry import open_sources
from trainer.data.source import Source
from trainer.evaluation.evaluator import Evaluator
from trainer.evaluation.figures import EvaluationResult
from trainer.models.init import fill
from trainer.models.registry import build_network
from trainer.parallel.apply import parallelize
from trainer.parallel.engine import Engine, Recipe
from trainer.parallel.mesh import Mesh
from trainer.weights import find_best_checkpoint, reject_own_model
from trainer.world import World, start

_PROGRESS_S = 2.0
_INTERRUPTED = 130
# A single process holds the whole model, however many ranks trained it.
_ALONE = (
    "strategy=single",
    "tensor=1",
    "context=1",
    "expert=1",
    "pipeline=1",
    "engine=torch",
    "schedule=1f1b",
    "check_blocks=false",
    "shard=0",
    "offload=false",
    "reduce=fp32",
    "find_unused_parameters=false",
)


def print_evaluation(run: Path, overrides: list[str], *, is_best: bool = False, as_json: bool = False) -> int:
    """Evaluate a run, print the progress and the figures on rank 0, and return the exit status."""
    is_first = os.environ.get("RANK", "0") == "0"
    progress = _Progress() if is_first else None
    try:
        checkpoint, result = evaluate(find_best_checkpoint(run) if is_best else run, overrides, progress)
    except KeyboardInterrupt:
        if is_first:
            print("trainer: interrupted; evaluation.samples=N evaluates fewer samples", file=sys.stderr, flush=True)
        return _INTERRUPTED
    except ConfigError as error:
        if is_first:
            print(f"trainer: {error}", file=sys.stderr, flush=True)
        return 2
    if is_first and as_json:
        print(json.dumps({"checkpoint": str(checkpoint.path), "step": checkpoint.step, **asdict(result)}))
    elif is_first:
        print(f"{checkpoint.path.name}: {result}")
    return 0


def evaluate(
    run: Path, overrides: list[str], progress: Callable[[int, int], None] | None = None
) -> tuple[GoodCheckpoint, EvaluationResult]:
    """Return the newest good checkpoint of a run, or the given one, and its figures; every rank must call it.

    `progress` is called after each batch with the number of batches so far, and of all.
    """
    is_alone = int(os.environ.get("WORLD_SIZE", "1")) == 1
    forced = [f"parallel.{setting}" for setting in _ALONE] if is_alone else []
    # The settings are read before the ranks join, because they contain the device; rank 0's answer counts later.
    config = _load_settings(run, [*forced, *overrides])
    source = _open_evaluation_set(config)
    needs_group = config.parallel.strategy in ("fsdp", "hsdp")
    world = start(config.run.device, config.run.join_timeout_s, group_of_one=needs_group)
    checkpoints = Checkpoints(run, rank=world.rank, world_size=world.size, group=world.group)
    checkpoint = _find(checkpoints, run)
    engine = _build(config, world)
    checkpoints.load(checkpoint, _name_tensors(engine), partial=True)
    evaluator = Evaluator(engine, source, config, config.batch.micro if config.batch.micro != "auto" else 1)
    counter = count(1)

    def report() -> bool:
        if progress is not None:
            progress(next(counter), evaluator.batches)
        return False

    result = evaluator.run(report)
    world.close()
    if result is None:
        raise AssertionError("nothing stops this evaluation")
    return checkpoint, result


class _Progress:
    """A line about the progress every few seconds."""

    def __init__(self) -> None:
        self._began = self._printed = 0.0

    def __call__(self, done: int, batches: int) -> None:
        now = time.monotonic()
        # The first batch ends long after the start, because the model is built and loaded before it.
        self._began = self._began or now
        if now - self._printed < _PROGRESS_S:
            return
        self._printed = now
        left_s = (now - self._began) / max(done - 1, 1) * (batches - done)
        print(f"evaluated {done:,} of {batches:,} batches, about {left_s:.0f} s left", file=sys.stderr, flush=True)


def _find(checkpoints: Checkpoints, run: Path) -> GoodCheckpoint:
    checkpoint = checkpoints.newest()
    if checkpoint is None:
        message = f"{run} contains no checkpoint" if run.is_dir() else f"there is no folder {run}"
        raise ConfigError([ConfigProblem("RUN", message, "use a run's folder, its checkpoints folder or a checkpoint")])
    return checkpoint


def _load_settings(run: Path, overrides: list[str]) -> Config:
    """Return the settings of the run's newest checkpoint with changes, or raise ConfigError."""
    checkpoints = Checkpoints(run, verify="size")
    state = checkpoints.read_state(_find(checkpoints, run))
    reject_own_model(run, state, "RUN", "call trainer.evaluate(batches) in that script")
    stored: dict[str, Any] = state["config"]
    stored.pop("communication", None)  # no gradients are sent, so any strategy may evaluate the run
    held_out = stored.get("evaluation", {}).get("share", 0)
    config = change(stored, overrides)
    if config.evaluation.share not in (0, held_out):
        message = f"{config.evaluation.share:g}, but the run held out {held_out:g} and trained on the other samples"
        raise ConfigError([ConfigProblem("evaluation.share", message, "leave it out, or set evaluation.path")])
    return config


def _open_evaluation_set(config: Config) -> Source:
    source = open_sources(config).evaluation
    if source is None:
        message = "the settings of the run have no evaluation set"
        raise ConfigError([ConfigProblem("evaluation", message, "add evaluation.path=FOLDER")])
    return source


def _build(config: Config, world: World) -> Engine:
    """Build the model without an optimizer, whose state needs twice the memory of the weights."""
    layout = resolve_layout(config.parallel, world.size, world.local_size)
    recipe = Recipe(config.parallel, config.precision, config.compile, config.fp8, optimizer=config.optimizer)
    mesh = Mesh(layout, world.rank, world.device, uses_fully_shard=recipe.uses_fully_shard(layout))
    weights = partial(fill, seed=config.run.seed, device=world.device)
    return parallelize(lambda: build_network(config), recipe, mesh, weights)


def _name_tensors(engine: Engine) -> dict[str, Any]:
    """Return weights and buffers under their names in a checkpoint."""
    return {
        **{f"model.{name}": value for name, value in engine.named_parameters()},
        **{f"buffer.{name}": value for name, value in engine.named_buffers()},
    }
