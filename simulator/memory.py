"""What one GPU has to hold."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.layout import Layout
from simulator.model import Model, Transformer
from simulator.parameters import head_width, parameters
from simulator.system import System

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Memory:
    parts: dict[str, float]
    """Bytes by what holds them."""
    total: float


def memory(model: Model, layout: Layout, system: System) -> Memory:
    held = parameters(model)
    layers = held.layers / layout.pp
    mixtures = held.mixtures / layout.pp
    ends = (held.embedding + held.head) if layout.pp == 1 else max(held.embedding, held.head)
    plain = (layers * held.attention + (layers - mixtures) * held.dense + mixtures * held.shared + ends) / layout.tp
    routed = mixtures * held.experts * held.expert / layout.ep / layout.tp
    ranks = layout.dp * layout.cp
    shard = min(layout.shard or ranks, ranks) if layout.zero else 1
    state = 8 + (4 if layout.weight_bytes == 4 and layout.zero < 3 else 0)
    over = max(1, shard // layout.ep)
    sizes = {
        "weights": _split(
            plain,
            routed,
            2 if layout.zero < 3 else layout.weight_bytes,
            shard if layout.zero == 3 else 1,
            over if layout.zero == 3 else 1,
        ),
        "gradients": _split(
            plain, routed, layout.gradient_bytes, shard if layout.zero >= 2 else 1, over if layout.zero >= 2 else 1
        ),
        "optimizer": _split(plain, routed, state, shard, over),
    }
    assert isinstance(model, Transformer)
    tokens = layout.micro_batch * model.seq / layout.cp
    flight = min(layout.pp, max(1, layout.micro_batches))
    t = layout.tp
    h = model.hidden
    kv = model.kv_heads / model.heads
    per_layer = tokens * h * (8 / (t if layout.sequence_parallel else 1) + (4 + 4 * kv) / t)
    inner = model.ffn if model.experts is None else (model.experts.per_token + model.experts.shared) * model.experts.ffn
    per_layer += tokens * (8 if model.gated else 4) * inner / t
    if not model.flash and layout.recompute == "none":
        per_layer += 5 * tokens * model.seq * model.heads / t
    if layout.recompute == "full":
        alive = per_layer
        per_layer = 2 * tokens * h / (t if layout.sequence_parallel else 1)
    else:
        alive = 0.0
    sizes["activations"] = (
        per_layer
        * layers
        * flight
        * (1 + (layout.pp - 1) / (layout.pp * layout.virtual_stages) if layout.virtual_stages > 1 else 1)
        + alive
    )
    sizes["logits"] = tokens * model.vocab / t * 8
    sizes["context"] = 3.0 * GIB
    return Memory(sizes, sum(sizes.values()))


def _split(plain: float, routed: float, size: float, shard: int, over: int) -> float:
    return size * (plain / shard + routed / over)
