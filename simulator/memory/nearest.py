"""Layouts near one that does not fit, those that cost the least speed first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from simulator.layout import Layout
from simulator.model import Model, Transformer

MODES = ("none", "selective", "full")
WIDEST = 8
"""Tensor parallel ranks: beyond a node it is slower than anything else here."""
MOST = 64
"""Times more GPUs that are still near."""


def list_layout_changes(model: Model, layout: Layout) -> Iterator[tuple[str, Layout]]:
    """What is changed, in words, and the changed layout: one thing, then all of them, then on more GPUs."""
    for changed in _single(layout):
        yield _words(layout, changed), changed
    least = _least(layout)
    yield _words(layout, least), least
    for tp in _wider(model, layout):
        spread = replace(least, tp=tp, dp=layout.dp * layout.tp // tp, sequence_parallel=True)
        yield _words(layout, spread), spread
    hosted = replace(_least(layout), offload=True)
    if hosted.zero:
        yield _words(layout, hosted), hosted
    times = 2
    while times <= MOST:
        more = _least(replace(layout, dp=layout.dp * times))
        yield f"{more.gpus} GPUs, {_words(layout, more)}", more
        times *= 2


def _single(layout: Layout) -> Iterator[Layout]:
    if layout.dp * layout.cp > 1:
        for zero in range(layout.zero + 1, 4):
            yield _changed(layout, zero=zero)
    if layout.tp > 1 and not layout.sequence_parallel:
        yield replace(layout, sequence_parallel=True)
    size = layout.micro_batch // 2
    while size >= 1:
        yield replace(layout, micro_batch=size)
        size //= 2
    for mode in MODES[MODES.index(layout.recompute) + 1 :]:
        yield _changed(layout, recompute=mode)


def _least(layout: Layout) -> Layout:
    """All of the single changes at once; a batch that more ranks can share."""
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


def _wider(model: Model, layout: Layout) -> Iterator[int]:
    tp = layout.tp * 2
    while tp <= WIDEST and isinstance(model, Transformer):
        if model.heads % tp or layout.dp * layout.tp % tp:
            return
        yield tp
        tp *= 2


def _changed(layout: Layout, **fields: Any) -> Layout:
    return replace(layout, **fields)


def _words(before: Layout, after: Layout) -> str:
    """property value, of what differs and can be written down."""
    names = ("tp", "zero", "recompute", "micro_batch", "sequence_parallel", "offload")
    changed = [name for name in names if getattr(before, name) != getattr(after, name)]
    return ", ".join(name if getattr(after, name) is True else f"{name} {getattr(after, name)}" for name in changed)
