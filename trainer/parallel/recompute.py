"""Activations that are computed again in backward instead of being kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import nn

from trainer.parallel.blocks import blocks


def recompute(model: nn.Module, mode: Literal["none", "selective", "full"]) -> None:
    """Make each block's forward forget. The blocks stay where they are, so names of parameters do not change."""
    if mode == "none":
        return
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts  # noqa: PLC0415

    options: dict[str, Any] = {"use_reentrant": False}
    if mode == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _keep_products)
    for block in blocks(model):
        block.forward = _forgetful(block.forward, checkpoint, options)


def _forgetful(forward: Callable[..., Any], checkpoint: Callable[..., Any], options: dict[str, Any]) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, **options, **kwargs)

    return run


def _keep_products(_: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG001
    """Keep what matrix products and attention gave; the rest is cheap to have again, and half of the memory.

    Choosing every second block instead would compute half of the products twice for the same memory.
    """
    from torch.utils.checkpoint import CheckpointPolicy  # noqa: PLC0415

    is_kept = operation in _products()
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


@cache
def _products() -> frozenset[Any]:
    names = (
        "mm",
        "addmm",
        "bmm",
        "convolution",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
    found = (getattr(torch.ops.aten, name, None) for name in names)
    return frozenset(operation.default for operation in found if operation is not None)
