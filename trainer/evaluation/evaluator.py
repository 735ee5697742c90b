"""Evaluate a model on held-out samples, with the precision and the parallelism of its training."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

import torch

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.layout import DATA_AXES
from trainer.config.models import DecoderConfig
from trainer.config.schema import Config
from trainer.data.loader import Loader
from trainer.data.mixture import Ingredient, Mixture
from trainer.data.source import Source
from trainer.evaluation.evaluation_set import EvaluationSet, divide_samples
from trainer.evaluation.figures import SUMS, CrossEntropySums, EvaluationResult, compute_perplexity
from trainer.metrics.device_values import DeviceValues
from trainer.parallel.context import take_part
from trainer.parallel.engine import Batch, Engine, LossFunction
from trainer.parallel.evaluation_mode import evaluation_mode

_SUM_NAMES = ("loss", "targets", "correct")
_ORDER_SEED = 0


class Evaluator:
    """The evaluations of one rank; all ranks evaluate together, each its share of every batch."""

    def __init__(self, engine: Engine, source: Source, config: Config, micro: int) -> None:
        self._engine = engine
        self._config = config
        self._micro = micro
        layout = engine.mesh.layout
        # A pipeline needs several micro-batches at a time to keep its ranks busy.
        self._batch_size = micro * layout.dp_size * layout.pipeline
        sources = source.ingredients if isinstance(source, Mixture) else (Ingredient("", source, 1.0),)
        weights = [ingredient.weight / sum(item.weight for item in sources) for ingredient in sources]
        limits = divide_samples(config.evaluation.samples, weights)
        self._measure = CrossEntropySums(config.loss.chunk_tokens)
        self._sets = [
            _WeightedSet(item.name, weight, EvaluationSet(item.source, limit, self._batch_size))
            for item, weight, limit in zip(sources, weights, limits, strict=True)
        ]

    @property
    def samples(self) -> int:
        """Samples of an evaluation."""
        return sum(part.samples.samples for part in self._sets)

    @property
    def batches(self) -> int:
        """Batches of an evaluation."""
        return sum(part.samples.batches for part in self._sets)

    @property
    def is_remote(self) -> bool:
        """Whether a batch may take minutes, because samples are read over a network."""
        return any(part.samples.is_remote for part in self._sets)

    def run(self, is_stopped: Callable[[], bool] = lambda: False) -> EvaluationResult | None:
        """Evaluate once; `is_stopped` is called after each batch, and a true answer ends the evaluation with None."""
        began = time.perf_counter()
        means: list[tuple[float, float]] = []
        for part in self._sets:
            sums = self._sum(part.samples, is_stopped)
            if sums is None:
                return None
            loss, targets, correct = sums
            if not targets:
                raise ConfigError([self._explain_no_targets(part)])
            means.append((loss / targets, correct / targets))
        weights = [part.weight for part in self._sets]
        loss, accuracy = (_average(figures, weights) for figures in zip(*means, strict=True))
        losses = {part.name: mean for part, (mean, _) in zip(self._sets, means, strict=True) if part.name}
        has_tokens = isinstance(self._config.model, DecoderConfig)
        perplexity = compute_perplexity(loss) if has_tokens else None
        return EvaluationResult(loss, accuracy, perplexity, self.samples, time.perf_counter() - began, losses)

    def _explain_no_targets(self, part: _WeightedSet) -> ConfigProblem:
        settings = self._config.evaluation
        where, value = ("evaluation.path", settings.path) if settings.path else ("evaluation.share", settings.share)
        name = f" of {part.name}" if part.name else ""
        message = f"{value} gives {part.samples.samples} samples{name}, but no token to predict in any of them"
        return ConfigProblem(where, message, "use documents of two tokens or more, or a larger evaluation set")

    def _sum(self, samples: EvaluationSet, is_stopped: Callable[[], bool]) -> tuple[float, float, float] | None:
        mesh, data = self._engine.mesh, self._config.data
        loader = Loader(
            samples,
            _ORDER_SEED,
            self._batch_size,
            dp_rank=mesh.dp_rank,
            dp_size=mesh.layout.dp_size,
            workers=data.workers,
            ahead=data.ahead,
            device=mesh.device,
        )
        with closing(loader):
            batches = (next(loader).tensors for _ in range(samples.batches))
            return sum_batches(self._engine, batches, self._measure, self._micro, is_stopped)


@dataclass(frozen=True)
class _WeightedSet:
    """The evaluation set of one data set of a mixture, with its weight in the overall figures."""

    name: str
    """Name in the records; empty if there is no mixture."""
    weight: float
    samples: EvaluationSet


def sum_batches(
    engine: Engine,
    batches: Iterable[Batch],
    measure: LossFunction,
    micro: int | None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> tuple[float, float, float] | None:
    """Return loss, targets and correct predictions, summed over all batches of all ranks; None if it was stopped.

    Every rank must pass the same number of batches. `micro` is None to run each batch in one piece.
    """
    values = DeviceValues(engine.mesh.device)
    none = torch.zeros(SUMS, dtype=torch.float64, device=engine.mesh.device)
    totals = [0.0] * SUMS
    with evaluation_mode(engine):
        for index, batch in enumerate(batches):
            sums = engine.measure(take_part(batch, engine.mesh), measure, micro or len(batch["inputs"]))
            values.put(index, dict(zip(_SUM_NAMES, none if sums is None else sums, strict=True)))
            # One batch late, so that the device has work while the host reads.
            _add(totals, values)
            if is_stopped():
                return None
        _add(totals, values, is_last=True)
        combined = torch.tensor(totals, dtype=torch.float64, device=engine.mesh.device)
        loss, targets, correct = engine.mesh.sum_over(combined, *DATA_AXES, "pipeline").tolist()
    return loss, targets, correct


def _average(figures: Sequence[float], weights: Sequence[float]) -> float:
    return sum(figure * weight for figure, weight in zip(figures, weights, strict=True))


def _add(totals: list[float], values: DeviceValues, *, is_last: bool = False) -> None:
    for reading in values.drain() if is_last else values.take():
        for index, name in enumerate(_SUM_NAMES):
            totals[index] += reading.values[name]
