"""A short run with tensor parallelism on this rank that records how many logits exist."""

from __future__ import annotations

from typing import Any

from tests.trainer.curves import global_batch, make_step
from tests.trainer.logit_counter import LogitCounter
from trainer.config.load import from_dict
from trainer.evaluation.evaluator import sum_batches
from trainer.evaluation.figures import CrossEntropySums
from trainer.models.functional import IGNORED_TARGET


def measure(config: dict[str, Any]) -> dict[str, Any]:
    """Return loss and norm of a step, the sums of an evaluation, and the rows and columns of the most logits."""
    settings: Any = from_dict(config)
    step = make_step(settings, count_targets=True)
    mesh, vocabulary = step.engine.mesh, settings.model.vocab_size
    batch = global_batch(settings, 0)
    # A copy, because inputs and targets are views of the same tokens.
    batch["targets"] = batch["targets"].clone()
    batch["targets"][:, 3:5] = IGNORED_TARGET
    size = len(batch["inputs"]) // mesh.layout.dp_size
    batch = {name: value[mesh.dp_rank * size :][:size] for name, value in batch.items()}
    part = -(-vocabulary // mesh.layout.tensor)
    with LogitCounter(vocabulary, part, vocabulary - part * (mesh.layout.tensor - 1)) as counter:
        result = step.run(batch, 2)
        sums = sum_batches(step.engine, [batch], CrossEntropySums(settings.loss.chunk_tokens), 2)
    return {
        "loss": float(mesh.mean_over_data(result.loss)),
        "norm": float(result.grad_norm),
        "sums": sums,
        "rows": counter.rows,
        "columns": counter.columns,
    }
