"""A short training run on this rank, for tests that compare ways of running it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from trainer.config.layout import resolve_layout
from trainer.config.load import from_dict, load, to_dict
from trainer.config.models import DecoderConfig
from trainer.config.schema import Config
from trainer.evaluation.evaluator import sum_batches
from trainer.evaluation.figures import CrossEntropySums
from trainer.models.functional import IGNORED_TARGET
from trainer.models.init import fill
from trainer.models.registry import build_network
from trainer.objective import CrossEntropy, StepMeanLoss
from trainer.parallel.apply import parallelize
from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
from trainer.sample_losses import SampleLosses
from trainer.step import Step

BATCHES = 4
# Each batch is seen twice.
STEPS = 2 * BATCHES


def config_of(preset: str, overrides: list[str]) -> dict[str, Any]:
    return to_dict(load(preset, overrides))


def curve(
    config: dict[str, Any],
    micro: int,
    steps: int = STEPS,
    *,
    count_targets: bool = False,
    ignore_some: bool = False,
    has_documents: bool = False,
) -> dict[str, list[float]]:
    """Return the losses and gradient norms of a run on all ranks; the global batch does not depend on their number.

    `ignore_some` ignores some of the targets; `count_targets` makes the step average over the others. `has_documents`
    divides each sample into documents. The last item of `loss` is then that of an evaluation.
    """
    settings = from_dict(config)
    step = make_step(settings, count_targets=count_targets)
    mesh = step.engine.mesh
    size = settings.batch.size // mesh.layout.dp_size
    curves: dict[str, list[float]] = {"loss": [], "norm": [], "skipped": []}
    for index in range(steps):
        whole = global_batch(settings, index)
        if ignore_some:
            whole["targets"] = ignore_targets(whole["targets"])
        if has_documents:
            whole["documents"] = number_documents(whole["inputs"], index)
        batch = {key: value[mesh.dp_rank * size :][:size] for key, value in whole.items()}
        result = step.run(batch, micro)
        curves["loss"].append(float(mesh.mean_over_data(result.loss)))
        curves["norm"].append(float(result.grad_norm))
        curves["skipped"].append(float(result.skipped))
    if has_documents:
        sums = sum_batches(step.engine, [batch], CrossEntropySums(settings.loss.chunk_tokens), micro)
        curves["loss"].append(sums[0] / sums[1] if sums else 0.0)
    return curves


def make_step(config: Config, *, count_targets: bool = False, sources: int = 0, hosts: Sequence[str] = ()) -> Step:
    """Return the steps of a run; with `sources`, batches must have the number of each sample's data set.

    `hosts` has the host of each rank; without it, all ranks are on one.
    """
    world = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    recipe = Recipe(
        config.parallel, config.precision, config.compile, config.fp8, config.communication, config.optimizer
    )
    layout = resolve_layout(config.parallel, world, world)
    is_sharded = recipe.uses_fully_shard(layout)
    mesh = Mesh(layout, rank, torch.device("cpu"), uses_fully_shard=is_sharded, hosts=hosts)
    engine = parallelize(partial(build_network, config), recipe, mesh, fill=partial(fill, seed=config.run.seed))
    samples = SampleLosses(sources, mesh.device) if sources else None
    mean = CrossEntropy(config.loss.chunk_tokens, samples=samples)
    return Step(engine, config, StepMeanLoss(mesh, mean) if count_targets else mean, samples)


def global_batch(config: Config, index: int) -> dict[str, torch.Tensor]:
    """Return one of four batches, so that a few steps learn something."""
    generator = torch.Generator().manual_seed(index % BATCHES)
    model: Any = config.model
    size = config.batch.size
    if isinstance(model, DecoderConfig):
        tokens = torch.randint(model.vocab_size, (size, 17), generator=generator)
        return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}
    shape = (3, model.image_size, model.image_size) if model.family == "resnet" else (model.inputs,)
    inputs = torch.randn(size, *shape, generator=generator)
    return {"inputs": inputs, "targets": torch.randint(model.classes, (size,), generator=generator)}


def number_documents(inputs: torch.Tensor, index: int) -> torch.Tensor:
    """Divide samples into documents of other lengths than those of the sample before.

    The samples of every second batch, and the first two of each, are one document: a run meets both kinds.
    """
    size, length = inputs.shape
    sample = torch.arange(size)[:, None]
    starts = (torch.arange(length) % (3 + sample % 5) == 2) & (sample >= 2) & (index % 2 == 1)
    return starts.cumsum(1).to(torch.int32)


def ignore_targets(targets: torch.Tensor) -> torch.Tensor:
    """Ignore more targets in later samples, and all targets of the last sample."""
    size, length = targets.shape
    is_counted = torch.arange(length) < (length * torch.arange(size - 1, -1, -1) // (size - 1))[:, None]
    return torch.where(is_counted, targets, IGNORED_TARGET)


def count_collectives(config: dict[str, Any], micro: int) -> dict[str, int]:
    """Return how often each collective runs in a step."""
    from torch.profiler import ProfilerActivity, profile

    settings = from_dict(config)
    step = make_step(settings)
    size = settings.batch.size // step.engine.mesh.layout.dp_size
    batch = {key: value[:size] for key, value in global_batch(settings, 0).items()}
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        step.run(batch, micro)
    # The plain events: to build torch's tree of them takes longer than the step.
    names = (event.name() for event in recorded.profiler.kineto_results.events())
    return dict(Counter(name for name in names if name.startswith("c10d::")))
