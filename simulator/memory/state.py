"""Bytes of weights, gradients and optimizer state on one rank, and of the buffers for their exchange."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.layout import OWN_TRAINERS, Layout
from simulator.parameters import ParameterCounts
from simulator.trainers import TrainerBehavior, trainer_behavior

FUSED_WORKING_BYTES = 3.4
"""Working memory of backward per parameter of one layer, with fused kernels."""
OPTIMIZER, GRADIENTS, WEIGHTS = 1, 2, 3
"""The ZeRO stage from which each is sharded."""
NARROW_BYTES = 2
"""Bytes of a weight in bf16 or fp16."""
ADAPTER_SHARE = 0.01
"""Size of LoRA adapters, relative to the base weights."""


@dataclass(frozen=True, slots=True)
class StageParameters:
    """Parameters of one rank of a pipeline stage before ZeRO shards them."""

    replicated: float
    """Parameters that all data-parallel ranks hold."""
    routed: float
    """Parameters of the rank's own experts."""
    layer: float
    """Parameters of the largest layer, which is gathered at once."""
    ends: float
    """Parameters of the embedding and the output head."""
    mixtures: float
    """Layers of the stage that are mixtures of experts."""


def stage_parameters(held: ParameterCounts, layout: Layout, *, first: bool, last: bool) -> StageParameters:
    """Return the parameters of one rank of the first or last pipeline stage."""
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
    """Return the bytes of weights, gradients and optimizer state.

    The model of https://arxiv.org/abs/1910.02054 with the differences between frameworks.
    """
    behavior = trainer_behavior(layout.trainer)
    split = sharded_parameters(held, layout)
    whole = held.replicated + held.routed
    trainable = ADAPTER_SHARE if layout.adapters else 1.0
    sizes = {
        "weights": _weights(layout, whole, split),
        "gradients": trainable * (_gradients(layout, behavior, whole, split) + _compression_error(layout, whole)),
        "optimizer": trainable * (split if layout.zero >= OPTIMIZER else whole) * _optimizer_bytes(layout),
    }
    return sizes | dict.fromkeys(list_offloaded(layout), 0.0)


def sharded_parameters(held: StageParameters, layout: Layout) -> float:
    """Return the parameters of one rank after ZeRO sharded them."""
    ranks = layout.dp * layout.cp
    shard = min(layout.shard or ranks, ranks) if layout.zero else 1
    return held.replicated / shard + held.routed / max(1, shard // layout.ep)


def list_offloaded(layout: Layout) -> list[str]:
    """Return what host memory holds: the optimizer state, and what ZeRO shards."""
    if not layout.offload:
        return []
    names = ["optimizer"]
    if layout.zero >= GRADIENTS:
        names.append("gradients")
    if layout.zero == WEIGHTS:
        names.append("weights")
    return names


def working_bytes(held: StageParameters, layout: Layout) -> float:
    """Return the bytes of gathered weights and unreduced gradients while a layer is computed."""
    reduced = (2 + layout.gradient_bytes) * held.layer
    if layout.zero == WEIGHTS:
        gathered = 2 * held.layer * (1 + layout.prefetch)
        return gathered + reduced + (0.0 if layout.framework == "torch" else held.ends)
    if layout.framework != "torch":
        return FUSED_WORKING_BYTES * held.layer
    return reduced if layout.zero else layout.bucket_mb * 2e6


def gathered_vocabulary_bytes(held: StageParameters, layout: Layout) -> float:
    """Return the bytes of weights that ZeRO-3 gathers while the loss is computed."""
    return 2 * (held.ends + held.layer) if layout.zero == WEIGHTS and not keeps_weights_gathered(layout) else 0.0


def has_gradient_buffers(layout: Layout) -> bool:
    """Return whether gradients have permanent buffers."""
    return (
        layout.framework != "torch"
        or (layout.zero == 0 and layout.dp * layout.cp > 1)
        or keeps_weights_gathered(layout)
    )


def keeps_weights_gathered(layout: Layout) -> bool:
    """Return whether a pipeline of unfused modules keeps gathered weights and gradients until the last micro-batch."""
    return layout.framework == "torch" and layout.zero == WEIGHTS and layout.pp > 1


def _weights(layout: Layout, whole: float, split: float) -> float:
    if layout.adapters or layout.framework != "torch":
        size = layout.weight_bytes if layout.zero == WEIGHTS and not layout.adapters else 2
        return size * (split if layout.zero == WEIGHTS else whole)
    computed = whole * (4 if layout.dtype in ("fp32", "tf32") else 2)
    if layout.zero == 0:
        return layout.weight_bytes * whole + (computed if _has_weight_copies(layout) else 0.0)
    if layout.zero == WEIGHTS and layout.pp == 1:
        return layout.weight_bytes * split
    return layout.weight_bytes * split + computed


def _has_weight_copies(layout: Layout) -> bool:
    """Return whether products use low-precision copies of the weights, which backward needs again."""
    return layout.weight_bytes > NARROW_BYTES and layout.dtype not in ("fp32", "tf32")


def _gradients(layout: Layout, behavior: TrainerBehavior, whole: float, split: float) -> float:
    accumulates = layout.micro_batches > 1
    is_own = layout.trainer in OWN_TRAINERS and layout.framework == "torch"
    is_deferred = behavior.deferred and layout.zero >= GRADIENTS and accumulates
    if keeps_weights_gathered(layout) or is_deferred or (is_own and layout.zero == OPTIMIZER and accumulates):
        # fully_shard sums whole gradients in the format of the reduction.
        return layout.gradient_bytes * whole
    size = layout.summed_gradient_bytes
    if behavior.narrow_copies and layout.dtype == "bf16":
        size += NARROW_BYTES
    if layout.zero == 0 and layout.dp * layout.cp > 1:
        if behavior.copies_buckets:
            size *= 2
        if is_own and layout.gradient_bytes != layout.summed_gradient_bytes:
            # If the network is slower than backward, all buckets wait in the format of the reduction.
            size += layout.gradient_bytes
    if is_own and layout.zero >= GRADIENTS and 0 < layout.shard < layout.dp * layout.cp and accumulates:
        # Until the replicas are summed, fully_shard keeps the format of the reduction.
        size = max(size, layout.gradient_bytes)
    # This project's trainer scatters the gradients of a single micro-batch at once.
    is_split = layout.zero >= GRADIENTS or (is_own and layout.zero == OPTIMIZER)
    return size * (split if is_split else whole)


def _compression_error(layout: Layout, whole: float) -> float:
    """Return the bytes of the gradients that compression left for the next step.

    A layout has no method, so the moving average of this project's top-K is not counted.
    """
    return 4 * whole if layout.compression < 1 else 0.0


def _optimizer_bytes(layout: Layout) -> float:
    """Return the bytes per parameter of the optimizer's state, and of fp32 weights if the model has its own copy."""
    is_updated_in_place = layout.framework == "torch" or layout.zero == WEIGHTS or layout.weight_bytes == NARROW_BYTES
    return layout.optimizer_bytes + (0 if is_updated_in_place else 4)


def _first_mixtures(held: ParameterCounts, layout: Layout) -> float:
    layers = held.layers / layout.pp
    return max(0.0, layers - (held.layers - held.mixtures)) if held.mixtures else 0.0
