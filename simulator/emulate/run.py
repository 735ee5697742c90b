"""Run training steps of many ranks in this process with the trainer's own code."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from simulator.emulate.all_reduce import Algorithm
from simulator.emulate.group import Group
from simulator.emulate.limits import list_problems
from simulator.emulate.ranks import VirtualMesh, VirtualRanks
from trainer import auto_settings, host, rng
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.layout import resolve_layout
from trainer.config.schema import Config
from trainer.data.loader import Loader
from trainer.data.registry import open_source
from trainer.data.source import Source
from trainer.models.init import fill
from trainer.models.registry import build_model
from trainer.models.shape import shape_of
from trainer.objective import CrossEntropy
from trainer.parallel.apply import parallelize
from trainer.parallel.engine import Recipe
from trainer.step import RunningStatistics, Step
from trainer.world import World

_DEVICE = torch.device("cpu")
_FLOAT_BYTES = 4
_GIB = 2**30


@dataclass(frozen=True)
class StepResult:
    """The result of a step: the numbers that the first rank of a real run would record."""

    loss: float
    grad_norm: float
    skipped: bool
    rate: float


class Emulation:
    """A run of `ranks` ranks, of which `per_node` share a machine; open settings are resolved as in a real run."""

    def __init__(
        self,
        config: Config,
        ranks: int,
        per_node: int,
        algorithm: Algorithm = "ring",
        on_rank: Callable[[int], None] = lambda _: None,
    ) -> None:
        """`on_rank` is called with each rank that begins, because a step of many ranks takes long."""
        # Launchers of several ranks give each a single thread; more threads would add in a different order.
        torch.set_num_threads(1)
        source = open_source(config)
        self.config, self.micro, self.why = _resolve(config, ranks, per_node, source)
        self.group = Group(ranks, per_node, algorithm)
        _check(self.config, ranks, self.group.held_bytes(_FLOAT_BYTES * shape_of(config.model).params))
        layout = resolve_layout(self.config.parallel, ranks, per_node)
        self._mesh = VirtualMesh(layout, self.group, _DEVICE)
        self._loaders = [_loader(self.config, source, rank, ranks) for rank in range(ranks)]
        recipe = Recipe(self.config.parallel, self.config.precision, self.config.compile, self.config.fp8)
        weights = partial(fill, seed=self.config.run.seed, device=_DEVICE)
        inner = parallelize(partial(build_model, self.config.model), recipe, self._mesh, weights)
        rng.seed(self.config.run.seed, 0, 0)
        self._on_rank = on_rank
        self._ranks = VirtualRanks(inner, self._mesh, lambda rank: next(self._loaders[rank]).tensors)
        self.training = Step(self._ranks, self.config, CrossEntropy(self.config.loss.chunk_tokens))
        self._ranks.before_rank = self._begin_rank
        self._statistics = RunningStatistics(self._ranks.named_buffers())

    def step(self) -> StepResult:
        self._statistics.record()
        result = self.training.run(next(self._loaders[0]).tensors, self.micro)
        self._statistics.restore(result.skipped)
        mean = self.group.sum(self._ranks.losses) / self._mesh.layout.dp_size
        return StepResult(float(mean), float(result.grad_norm), bool(result.skipped > 0), result.rate)

    def _begin_rank(self) -> None:
        self._on_rank(self._mesh.rank)
        self.training.seed_dropout()


def _resolve(config: Config, ranks: int, per_node: int, source: Source) -> tuple[Config, int, list[str]]:
    world = World(0, ranks, 0, min(ranks, per_node), socket.gethostname(), _DEVICE, ())
    resolved = auto_settings.resolve_auto(config, world, source, Path(config.run.folder.format(name=config.name)))
    return resolved.config, resolved.micro, resolved.reasons


def _check(config: Config, ranks: int, held: int) -> None:
    problems = list_problems(config, ranks)
    free = host.available_memory()
    if held > free:
        message = f"{ranks} ranks need {held / _GIB:.1f} GiB for waiting gradients, {free / _GIB:.1f} GiB is free"
        problems.append(
            ConfigProblem("--ranks", f"{message}; allowed: what fits", "use fewer ranks, or --algorithm tree")
        )
    if problems:
        raise ConfigError(problems)


def _loader(config: Config, source: Source, rank: int, ranks: int) -> Loader:
    # Without worker threads: nothing waits for data here, and hundreds of ranks would start hundreds of threads.
    return Loader(source, config.run.seed, config.batch.size, dp_rank=rank, dp_size=ranks, workers=0)
