"""Recompute activations in the backward pass instead of storing them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from trainer.models.projections import multiply_jointly
from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.units import Units

# Start-up: torch.utils.checkpoint is imported only by runs that recompute.
# ruff: noqa: PLC0415


def recompute_units(_model: nn.Module, units: Units, recipe: Recipe, _mesh: Mesh) -> None:
    """Make each unit's forward discard its activations; parameter names do not change."""
    mode = recipe.parallel.recompute
    if mode == "none":
        return
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    options: dict[str, Any] = {"use_reentrant": False}
    if mode == "selective":
        options["context_fn"] = partial(create_selective_checkpoint_contexts, _keep_products)
    for unit in units.layers:
        unit.module.forward = _wrap(unit.module.forward, checkpoint, options)


def _wrap(forward: Callable[..., Any], checkpoint: Callable[..., Any], options: dict[str, Any]) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, **options, **kwargs)

    return run


def _keep_products(_: Any, operation: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG001
    """Store the results of matrix products and attention; all others take half of the memory and are fast to recompute.

    Recomputing every second block instead would save the same memory but compute half of the products twice.
    """
    from torch.utils.checkpoint import CheckpointPolicy

    is_product = operation in _list_products()
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


@cache
def _list_products() -> frozenset[Any]:
    names = (
        "mm",
        "addmm",
        "bmm",
        "_grouped_mm",
        "convolution",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
    )
    operations = (getattr(torch.ops.aten, name, None) for name in names)
    # That of queries, keys and values is an operation of its own.
    products = {operation.default for operation in operations if operation is not None} | {multiply_jointly._opoverload}
    # Attention within documents; it is an operation of its own only in compiled blocks.
    flex_attention = getattr(torch.ops.higher_order, "flex_attention", None)
    return frozenset(products if flex_attention is None else products | {flex_attention})
