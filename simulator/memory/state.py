"""Weights, gradients and optimizer state of one rank, and the buffers that their exchange needs."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.layout import Layout
from simulator.parameters import ParameterCounts
from simulator.trainers import TrainerBehavior, trainer_behavior

WORKING = 3.4
"""Bytes per parameter of one layer that backward needs beside everything else, with fused kernels."""
OPTIMIZER, GRADIENTS, WEIGHTS = 1, 2, 3
"""The stage of ZeRO from which each is split."""
NARROW = 2
"""Bytes of weights that have no fp32 masters."""
ADAPTERS = 0.01
"""Share of the weights that small added matrices have."""


@dataclass(frozen=True, slots=True)
class StageParameters:
    """Parameters of one rank of a stage before ZeRO splits them."""

    plain: float
    """That all data ranks hold."""
    routed: float
    """Experts of its own."""
    layer: float
    """The largest part that is gathered at once."""
    ends: float
    """Embedding and head."""
    mixtures: float
    """Layers of the stage whose feed-forward part is a mixture."""


def stage_parameters(held: ParameterCounts, layout: Layout, *, first: bool, last: bool) -> StageParameters:
    layers = held.layers / layout.pp
    mixtures = min(held.mixtures, layers) if last else _first_mixtures(held, layout)
    inner = layers * held.attention + (layers - mixtures) * held.dense + mixtures * held.shared
    embedding = held.embedding if first else 0
    head = (held.head or held.embedding) if last and (layout.pp > 1 or held.head) else 0
    whole = 1 if trainer_behavior(layout.trainer).whole_vocabulary else layout.tp
    ends = embedding / whole + head / layout.tp
    layer: float = held.attention + (held.shared if held.mixtures else held.dense)
    if layout.zero == WEIGHTS and held.mixtures:
        layer += held.experts * held.expert / layout.ep
    routed = mixtures * held.experts * held.expert / layout.ep / layout.tp
    return StageParameters(inner / layout.tp + ends, routed, layer / layout.tp, ends, mixtures)


def state_bytes(held: StageParameters, layout: Layout) -> dict[str, float]:
    """Bytes of a parameter: https://arxiv.org/abs/1910.02054, with what frameworks do in their own way."""
    ways = trainer_behavior(layout.trainer)
    split = sharded_parameters(held, layout)
    whole = held.plain + held.routed
    learned = ADAPTERS if layout.adapters else 1.0
    narrow = layout.weight_bytes == NARROW
    found = {
        "weights": _weights(layout, whole, split),
        "gradients": learned * (_gradients(layout, ways, whole, split) + _left_out(layout, whole)),
        "optimizer": learned * (split if layout.zero >= OPTIMIZER else whole) * _optimizer_bytes(layout, narrow),
    }
    return found | dict.fromkeys(list_offloaded(layout), 0.0)


def sharded_parameters(held: StageParameters, layout: Layout) -> float:
    """Parameters of one rank after ZeRO has split them."""
    ranks = layout.dp * layout.cp
    shard = min(layout.shard or ranks, ranks) if layout.zero else 1
    return held.plain / shard + held.routed / max(1, shard // layout.ep)


def list_offloaded(layout: Layout) -> list[str]:
    """What the host holds: the optimizer, and with it what ZeRO has split."""
    if not layout.offload:
        return []
    names = ["optimizer"]
    if layout.zero >= GRADIENTS:
        names.append("gradients")
    if layout.zero == WEIGHTS:
        names.append("weights")
    return names


def working_bytes(held: StageParameters, layout: Layout) -> float:
    """Weights that are gathered and gradients that are not yet reduced, while a layer is computed."""
    reduced = (2 + layout.gradient_bytes) * held.layer
    if layout.zero == WEIGHTS:
        gathered = 2 * held.layer * (1 + layout.prefetch)
        return gathered + reduced + (0.0 if layout.framework == "torch" else held.ends)
    if layout.framework != "torch":
        return WORKING * held.layer
    return reduced if layout.zero else layout.bucket_mb * 2e6


def gathered_vocabulary_bytes(held: StageParameters, layout: Layout) -> float:
    """What is gathered beside the state while the loss is computed."""
    return 2 * (held.ends + held.layer) if layout.zero == WEIGHTS and not keeps_weights_gathered(layout) else 0.0


def has_gradient_buffers(layout: Layout) -> bool:
    """Gradients have a place of their own from the first step to the last."""
    return (
        layout.framework != "torch"
        or (layout.zero == 0 and layout.dp * layout.cp > 1)
        or keeps_weights_gathered(layout)
    )


def keeps_weights_gathered(layout: Layout) -> bool:
    """Plain modules in a pipeline keep what they gathered, and gradients, until the last micro-batch."""
    return layout.framework == "torch" and layout.zero == WEIGHTS and layout.pp > 1


def _weights(layout: Layout, whole: float, split: float) -> float:
    if layout.adapters or layout.framework != "torch":
        size = layout.weight_bytes if layout.zero == WEIGHTS and not layout.adapters else 2
        return size * (split if layout.zero == WEIGHTS else whole)
    computed = whole * (4 if layout.dtype in ("fp32", "tf32") else 2)
    if layout.zero == 0:
        return layout.weight_bytes * whole + (computed if _cast(layout) else 0.0)
    if layout.zero == WEIGHTS and layout.pp == 1:
        return layout.weight_bytes * split
    return layout.weight_bytes * split + computed


def _cast(layout: Layout) -> bool:
    """Products are computed with copies of the weights, which backward needs again."""
    return layout.weight_bytes > NARROW and layout.dtype not in ("fp32", "tf32")


def _gradients(layout: Layout, ways: TrainerBehavior, whole: float, split: float) -> float:
    accumulates = layout.micro_batches > 1
    if keeps_weights_gathered(layout) or (ways.deferred and layout.zero >= GRADIENTS and accumulates):
        return layout.gradient_bytes * whole
    size = 2 if layout.weight_bytes == NARROW else 4
    if ways.narrow_copies and layout.dtype == "bf16":
        size += NARROW
    copies = 2 if ways.copies_buckets and layout.zero == 0 and layout.dp * layout.cp > 1 else 1
    return size * copies * (split if layout.zero >= GRADIENTS else whole)


def _left_out(layout: Layout, whole: float) -> float:
    """What compression did not send is added to the next step's gradients."""
    return 4 * whole if layout.compression < 1 else 0.0


def _optimizer_bytes(layout: Layout, narrow: bool) -> int:
    """Two moments, and the fp32 weights where those that are computed with are others."""
    if narrow:
        return 4
    return 8 if layout.framework == "torch" or layout.zero == WEIGHTS else 12


def _first_mixtures(held: ParameterCounts, layout: Layout) -> float:
    layers = held.layers / layout.pp
    return max(0.0, layers - (held.layers - held.mixtures)) if held.mixtures else 0.0
