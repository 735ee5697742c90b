"""Decide when sharded gradients are reduced. Imports no torch."""

from __future__ import annotations

from typing import Literal

from trainer.config.schema import ParallelConfig, StoredFormat

ZERO_GRADIENTS = 2
ZERO_PARAMETERS = 3

DeferredReduction = Literal["nothing", "replicas", "all"]
"""The reductions that are deferred to the last micro-batch: none, the one over replicas, or all of them."""


def zero_stage(parallel: ParallelConfig) -> int:
    """Return the ZeRO stage; without a shard axis every rank stores everything, as in stage 1."""
    return parallel.zero if parallel.strategy in ("fsdp", "hsdp") else 1


def choose_deferred_reduction(
    parallel: ParallelConfig, replicas: int, gradients: StoredFormat = "fp32"
) -> tuple[DeferredReduction, str]:
    """Return which reductions are deferred to the last micro-batch and, for `auto`, the reason.

    `auto` defers the reductions that need no additional memory. `gradients` is the format in which micro-batches are to
    be summed.
    """
    if parallel.accumulate == "sync":
        return "nothing", ""
    if parallel.accumulate == "defer":
        return "all", ""
    if parallel.reduce != "fp32" and gradients == "fp32":
        return "nothing", f"gradients are reduced after each micro-batch, because sums of {parallel.reduce} lose bits"
    if zero_stage(parallel) < ZERO_GRADIENTS:
        return "all", "gradients are reduced after the last micro-batch, as all of them are stored anyway"
    if replicas > 1:
        return "replicas", "gradients are scattered after each micro-batch, replicas are summed after the last"
    return "nothing", "gradients are scattered after each micro-batch, to store only a part of them"
