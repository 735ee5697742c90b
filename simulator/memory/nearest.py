"""List layouts similar to one that exceeds memory, those that cost the least speed first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from simulator.layout import Layout
from simulator.model import Model, Transformer

RECOMPUTE_MODES = ("none", "selective", "full")
MAX_TENSOR_RANKS = 8
"""Tensor parallelism beyond a node is slower than every other change here."""
MAX_GPU_FACTOR = 64
"""Largest multiple of the GPUs that is still suggested."""


def list_layout_changes(model: Model, layout: Layout) -> Iterator[tuple[str, Layout]]:
    """Yield a description of each change and the changed layout: single changes, all combined, then more GPUs."""
    for changed in _single_changes(layout):
        yield _describe(layout, changed), changed
    smallest = _all_changes(layout)
    yield _describe(layout, smallest), smallest
    for tp in _wider_tensor_groups(model, layout):
        dp = layout.dp * layout.tp // tp
        # A single replica has no ranks to shard over.
        zero = smallest.zero if dp * layout.cp > 1 else 0
        spread = _changed(smallest, tp=tp, dp=dp, zero=zero, sequence_parallel=True)
        yield _describe(layout, spread), spread
    offloaded = replace(_all_changes(layout), offload=True)
    if offloaded.zero:
        yield _describe(layout, offloaded), offloaded
    factor = 2
    while factor <= MAX_GPU_FACTOR:
        more = _all_changes(replace(layout, dp=layout.dp * factor))
        yield f"{more.gpus} GPUs, {_describe(layout, more)}", more
        factor *= 2


def _single_changes(layout: Layout) -> Iterator[Layout]:
    if layout.dp * layout.cp > 1:
        for zero in range(layout.zero + 1, 4):
            yield _changed(layout, zero=zero)
    if layout.tp > 1 and not layout.sequence_parallel:
        yield replace(layout, sequence_parallel=True)
    size = layout.micro_batch // 2
    while size >= 1:
        yield replace(layout, micro_batch=size)
        size //= 2
    for mode in RECOMPUTE_MODES[RECOMPUTE_MODES.index(layout.recompute) + 1 :]:
        yield _changed(layout, recompute=mode)


def _all_changes(layout: Layout) -> Layout:
    """Combine all single changes, with a batch that the ranks can share."""
    zero = 3 if layout.dp * layout.cp > 1 else layout.zero
    batch = max(layout.global_batch, layout.dp)
    return _changed(
        layout,
        zero=zero,
        shard=0,
        recompute="full",
        micro_batch=1,
        sequence_parallel=layout.tp > 1,
        global_batch=batch - batch % layout.dp,
    )


def _wider_tensor_groups(model: Model, layout: Layout) -> Iterator[int]:
    tp = layout.tp * 2
    while tp <= MAX_TENSOR_RANKS and isinstance(model, Transformer):
        if model.heads % tp or layout.dp * layout.tp % tp:
            return
        yield tp
        tp *= 2


def _changed(layout: Layout, **fields: Any) -> Layout:
    return replace(layout, **fields)


def _describe(before: Layout, after: Layout) -> str:
    """Describe the differing settings as `name value`."""
    names = ("tp", "zero", "recompute", "micro_batch", "sequence_parallel", "offload")
    changed = [name for name in names if getattr(before, name) != getattr(after, name)]
    return ", ".join(name if getattr(after, name) is True else f"{name} {getattr(after, name)}" for name in changed)
