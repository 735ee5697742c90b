"""A training run on this rank that returns every bit of its result, for tests that compare engines."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import torch

from tests.trainer.curves import global_batch, make_step
from trainer.config.load import from_dict
from trainer.evaluation.evaluator import sum_batches
from trainer.evaluation.figures import CrossEntropySums
from trainer.parallel.gradients import to_local


def train(config: dict[str, Any], micro: int, steps: int, hosts: Sequence[str] = ()) -> dict[str, Any]:
    """Return the losses, gradient norms, an evaluation and a digest of all tensors of a checkpoint."""
    settings = from_dict(config)
    step = make_step(settings, hosts=hosts)
    size = settings.batch.size // step.engine.mesh.layout.dp_size
    results = []
    for index in range(steps):
        whole = global_batch(settings, index)
        batch = {key: value[step.engine.mesh.dp_rank * size :][:size] for key, value in whole.items()}
        results.append(step.run(batch, micro))
    evaluation = sum_batches(step.engine, [batch], CrossEntropySums(settings.loss.chunk_tokens), micro)
    digest = sha256()
    for name, value in sorted(step.tensors().items()):
        digest.update(name.encode())
        local = to_local(value).detach().contiguous()
        # numpy has no bf16.
        digest.update((local.view(torch.int16) if local.dtype == torch.bfloat16 else local).numpy().tobytes())
    return {
        # As text, because the norm of gradients that overflow in fp16 is a nan, which does not equal itself.
        "losses": [float(result.loss).hex() for result in results],
        "norms": [float(result.grad_norm).hex() for result in results],
        "evaluation": evaluation,
        "digest": digest.hexdigest(),
    }
