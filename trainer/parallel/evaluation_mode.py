"""Run a model without training it: evaluation mode, no gradients, and the same running statistics on all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from trainer.parallel.engine import Engine


@contextmanager
def evaluation_mode(engine: Engine) -> Iterator[None]:
    """Switch off dropout and gradients within the block, and leave the engine ready to train after it.

    Running statistics, such as a batch norm's, differ between data-parallel ranks. Those of the first rank are used,
    because checkpoints contain them too: a resumed run evaluates to the same bits.
    """
    modules = [part for module in engine.modules for part in module.modules()]
    # A user may have set parts of the model to evaluation mode, so the modes are restored one by one.
    modes = [part.training for part in modules]
    for _, buffer in engine.named_buffers():
        engine.mesh.broadcast_over_data(buffer)
    for module in engine.modules:
        module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, is_training in zip(modules, modes, strict=True):
            part.training = is_training
            _reshard(part)


def _reshard(part: Any) -> None:
    """Free the gathered weights of a part: fully_shard keeps some of them for a backward pass, which does not come."""
    if hasattr(part, "set_reshard_after_backward"):
        part.reshard()
