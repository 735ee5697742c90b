"""What one GPU of the fullest pipeline stage has to hold, and the nearest layout that fits where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator.layout import Layout
from simulator.model import Model, Stack, Transformer
from simulator.parameters import Parameters, head_width, parameters
from simulator.system import System

GIB = 2**30
OUTSIDE = 2.0 * GIB
"""CUDA's context, kernels and NCCL's buffers, which the allocator does not count."""
FRAGMENTED = 1.03
"""What the allocator takes of the device over what tensors hold at their peak."""
WORKING = 3.4
"""Bytes per parameter of one layer that backward needs beside everything else, with fused kernels."""


@dataclass(frozen=True, slots=True)
class Memory:
    parts: dict[str, float]
    """Bytes by what holds them."""
    total: float
    """Peak of the allocator."""
    room: float
    """Bytes of a GPU; data sheets mean GiB where they say GB."""

    @property
    def taken(self) -> float:
        """Of the device."""
        return self.total * FRAGMENTED + OUTSIDE

    @property
    def fits(self) -> bool:
        return self.taken <= self.room

    @property
    def reason(self) -> str:
        """Why it does not fit; empty where it does."""
        if self.fits:
            return ""
        largest = max(self.parts, key=self.parts.__getitem__)
        return (
            f"memory: {self.taken / GIB:.1f} GiB; allowed: {self.room / GIB:.0f} GiB; "
            f"largest: {largest} {self.parts[largest] / GIB:.1f} GiB"
        )


def memory(model: Model, layout: Layout, system: System) -> Memory:
    """The first stage keeps the most micro-batches, the last has the logits."""
    held = parameters(model)
    parts = _stage(model, held, layout, first=True, last=layout.pp == 1)
    total = sum(parts.values())
    if layout.pp > 1:
        others = _stage(model, held, layout, first=False, last=True)
        if sum(others.values()) > total:
            parts, total = others, sum(others.values())
    return Memory(parts, total, system.gpu.memory_gb * GIB)


def nearest(model: Model, layout: Layout, system: System) -> str:
    """The smallest change that makes it fit, as words; empty where none does."""
    for words, changed in _changes(model, layout):
        if memory(model, changed, system).fits:
            return words
    return ""


def _changes(model: Model, layout: Layout) -> Iterator[tuple[str, Layout]]:
    """Those that cost the least speed first."""
    if layout.dp * layout.cp > 1:
        for zero in range(layout.zero + 1, 4):
            yield f"zero {zero}", replace(layout, zero=zero)  # type: ignore[arg-type]
    if layout.tp > 1 and not layout.sequence_parallel:
        yield "sequence_parallel", replace(layout, sequence_parallel=True)
    size = layout.micro_batch // 2
    while size >= 1:
        yield f"micro_batch {size}", replace(layout, micro_batch=size)
        size //= 2
    modes = ("none", "selective", "full")
    for mode in modes[modes.index(layout.recompute) + 1 :]:
        yield f"recompute {mode}", replace(layout, recompute=mode)  # type: ignore[arg-type]
        yield f"recompute {mode}, micro_batch 1", replace(layout, recompute=mode, micro_batch=1)  # type: ignore[arg-type]
    if isinstance(model, Transformer):
        tp = layout.tp * 2
        while tp <= 8 and model.heads % tp == 0 and layout.dp % (tp // layout.tp) == 0:
            spread = replace(layout, tp=tp, dp=layout.dp // (tp // layout.tp), sequence_parallel=True)
            yield f"tp {tp}", spread
            full = replace(spread, recompute="full", micro_batch=1, zero=max(layout.zero, 1))  # type: ignore[arg-type]
            yield f"tp {tp}, recompute full, micro_batch 1, zero {full.zero}", full
            tp *= 2
    if layout.zero == 3:
        yield "offload", replace(layout, offload=True, recompute="full", micro_batch=1)


def _stage(model: Model, held: Parameters, layout: Layout, *, first: bool, last: bool) -> dict[str, float]:
    plain, routed = stage_parameters(held, layout, first=first, last=last)
    parts = _state(plain, routed, held, layout)
    if isinstance(model, Stack):
        kept = sum(layer.kept for layer in model.layers) * layout.micro_batch
        parts["activations"] = 2.0 * kept * (0.3 if layout.recompute == "full" else 1.0)
    else:
        mixtures = min(held.mixtures, held.layers / layout.pp) if last else _first_mixtures(held, layout)
        parts["activations"] = _activations(model, layout, mixtures, first=first)
        if last:
            per_logit = 12 if layout.framework == "torch" and not layout.compiled else 6
            parts["logits"] = per_logit * tokens(model, layout) * model.vocab / layout.tp
    return parts


def stage_parameters(held: Parameters, layout: Layout, *, first: bool, last: bool) -> tuple[float, float]:
    """Of one rank before ZeRO: those that all data ranks hold, and experts of its own."""
    layers = held.layers / layout.pp
    mixtures = min(held.mixtures, layers) if last else _first_mixtures(held, layout)
    plain = layers * held.attention + (layers - mixtures) * held.dense + mixtures * held.shared
    if first:
        plain += held.embedding
    if last and (layout.pp > 1 or held.head):
        plain += held.head or held.embedding
    return plain / layout.tp, mixtures * held.experts * held.expert / layout.ep / layout.tp


def _first_mixtures(held: Parameters, layout: Layout) -> float:
    layers = held.layers / layout.pp
    return max(0.0, layers - (held.layers - held.mixtures)) if held.mixtures else 0.0


def _state(plain: float, routed: float, held: Parameters, layout: Layout) -> dict[str, float]:
    ranks = layout.dp * layout.cp
    shard = min(layout.shard or ranks, ranks) if layout.zero else 1
    over = max(1, shard // layout.ep)
    narrow = layout.weight_bytes == 2
    learned = 0.01 if layout.adapters else 1.0
    whole = layout.zero == 3 or layout.framework == "torch"
    weight = layout.weight_bytes if whole and not layout.adapters else 2
    gradient = 2 if narrow else 4
    optimizer = 4 if narrow else 8 if whole else 12
    state = {
        "weights": _split(plain, routed, weight, shard, over, layout.zero == 3),
        "gradients": learned * _split(plain, routed, gradient, shard, over, layout.zero >= 2),
        "optimizer": learned * _split(plain, routed, optimizer, shard, over, layout.zero >= 1),
        "working": _working(held, layout),
    }
    if layout.offload:
        state.update(weights=0.0, gradients=0.0, optimizer=0.0)
    return state


def _split(plain: float, routed: float, size: float, shard: int, over: int, split: bool) -> float:
    return size * (plain / shard + routed / over) if split else size * (plain + routed)


def _working(held: Parameters, layout: Layout) -> float:
    """Weights that are gathered and gradients that are not yet reduced."""
    layer = held.attention + (held.shared if held.mixtures else held.dense)
    if layout.zero < 3:
        return WORKING * layer / layout.tp if layout.framework != "torch" else layout.bucket_mb * 2e6
    vocabulary = 2 * (held.embedding if layout.pp == 1 else 0) / layout.tp
    layer += held.experts * held.expert / layout.ep if held.mixtures else 0.0
    gathered = 2 * layer * (1 + layout.prefetch) / layout.tp
    return gathered + (2 + layout.gradient_bytes) * layer / layout.tp + vocabulary


def tokens(model: Transformer, layout: Layout) -> float:
    return layout.micro_batch * model.seq / layout.cp


def _activations(model: Transformer, layout: Layout, mixtures: float, *, first: bool) -> float:
    layers = model.layers / layout.pp
    dense = _layer(model, layout, mixture=False)
    mixed = _layer(model, layout, mixture=True) if mixtures else 0.0
    border = 2 * tokens(model, layout) * model.hidden / (layout.tp if layout.sequence_parallel else 1)
    if layout.recompute == "full":
        kept, alive = border * layers, max(dense, mixed)
    else:
        kept, alive = dense * (layers - mixtures) + mixed * mixtures, 0.0
    return kept * _in_flight(layout, first=first) + alive


def _in_flight(layout: Layout, *, first: bool) -> float:
    if layout.pp == 1:
        return 1.0
    count = max(1, layout.micro_batches)
    if layout.schedule == "gpipe":
        return float(count)
    if not first:
        return 1.0
    more = 1 + (layout.pp - 1) / (layout.pp * layout.virtual_stages) if layout.virtual_stages > 1 else 1.0
    return min(float(count), layout.pp * more)


def _layer(model: Transformer, layout: Layout, *, mixture: bool) -> float:
    """arXiv 2205.05198, for other attentions and feed-forward parts too."""
    tp = layout.tp
    share = tp if layout.sequence_parallel else 1
    wide = 8 * model.hidden / share
    if not model.gated:
        wide += 2 * model.hidden / share
    inner = _attention(model) / tp + _feed_forward(model, layout, mixture)
    scores = 0.0 if model.flash or layout.recompute != "none" else 5 * model.seq * model.heads / tp
    kept = wide + inner + scores
    if layout.framework == "torch":
        kept *= 0.55 if layout.recompute == "selective" else 1.0 if layout.compiled else 1.25
    return tokens(model, layout) * kept


def _attention(model: Transformer) -> float:
    """Bytes of a token: queries, keys, values and what comes out."""
    if model.latent is None:
        width = head_width(model)
        return 2.0 * width * (model.heads * 2 + model.kv_heads * 2)
    latent = model.latent
    key = latent.nope + latent.rope
    narrow = 2 * (latent.query + latent.key_value + latent.rope)
    return 2.0 * model.heads * (2 * key + latent.nope + 2 * latent.value) + 2 * narrow


def _feed_forward(model: Transformer, layout: Layout, mixture: bool) -> float:
    kinds = 3 if model.gated else 2
    if not mixture or model.experts is None:
        return 2.0 * kinds * model.ffn / layout.tp
    experts = model.experts
    inside = 2.0 * kinds * experts.ffn * (experts.per_token + experts.shared) / layout.tp
    return inside + 4.0 * experts.per_token * model.hidden
