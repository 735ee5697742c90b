"""Evaluate a model on this rank, for tests that compare strategies."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.trainer.curves import global_batch, make_step
from trainer.config.load import from_dict
from trainer.data.registry import open_sources
from trainer.evaluation.evaluator import Evaluator


def evaluate_then_train(config: dict[str, Any], micro: int = 2) -> dict[str, float]:
    """Return the loss of an evaluation, and that of a training step with the same weights over the same samples."""
    settings = from_dict(config)
    step = make_step(settings)
    mesh = step.engine.mesh
    source = open_sources(settings).evaluation
    assert source is not None
    evaluated = Evaluator(step.engine, source, settings, micro).run()
    assert evaluated is not None
    assert evaluated.samples == settings.batch.size
    size = settings.batch.size // mesh.layout.dp_size
    arrays = source.fetch(np.arange(mesh.dp_rank * size, (mesh.dp_rank + 1) * size), 0)
    batch = {key: torch.as_tensor(value) for key, value in arrays.items()}
    return {"evaluated": evaluated.loss, "trained": float(mesh.mean_over_data(step.run(batch, micro).loss))}


def evaluate(config: dict[str, Any], micro: int = 2, evaluations: int = 1) -> dict[str, Any]:
    """Train a step, evaluate, train a step, and return the figures of the evaluations and the loss after them."""
    settings = from_dict(config)
    step = make_step(settings)
    mesh = step.engine.mesh
    size = settings.batch.size // mesh.layout.dp_size

    def train(index: int) -> float:
        whole = global_batch(settings, index)
        batch = {key: value[mesh.dp_rank * size :][:size] for key, value in whole.items()}
        return float(mesh.mean_over_data(step.run(batch, micro).loss))

    train(0)
    source = open_sources(settings).evaluation
    assert source is not None
    evaluator = Evaluator(step.engine, source, settings, micro)
    results = [evaluator.run() for _ in range(evaluations)]
    assert evaluator.run(lambda: True) is None
    modes = {part.training for module in step.engine.modules for part in module.modules()}
    values = [(result.values(), result.samples) for result in results if result is not None]
    return {"results": values, "loss": train(1), "modes": modes}
