"""What forward leaves for backward, and what the loss holds, on one rank in bytes."""

from __future__ import annotations

from simulator.layout import Layout
from simulator.memory.state import WEIGHTS
from simulator.model import SequentialModel, Transformer
from simulator.parameters import head_width
from simulator.trainers import trainer_behavior

FUSED_LOGIT = 6
"""Bytes of one logit at the loss, with fused kernels."""
LOSSES = {"compiled": 4.0, "chunked": 4.0, "fused": 0.5}
"""Bytes of one logit without torch's own loss: bf16 scores and their gradient, or a piece of them at a time."""
SPLIT_LOSS = 4 / 3
"""Copies of logits in torch's loss_parallel over those of its plain loss: exponentials and shifted scores apart."""
IN_BACKWARD = 3
"""Bytes per number inside the feed-forward part that backward holds in plain modules; measured 2.6 to 3.1."""
RECOMPUTED_STACK = 0.3
"""Share of what convolutions keep that is left where blocks are computed again."""


def activation_bytes(model: Transformer, layout: Layout, mixtures: float, *, first: bool) -> tuple[float, float]:
    """Kept until backward comes to it, and alive beside that while one layer is in backward."""
    layers = model.layers / layout.pp
    count = tokens(model, layout) * _width(layout)
    dense = count * _layer(model, layout, layout.recompute, mixture=False)
    mixed = count * _layer(model, layout, layout.recompute, mixture=True) if mixtures else 0.0
    sent = count * 2 * model.hidden if layout.pp > 1 and trainer_behavior(layout.trainer).keeps_outputs else 0.0
    kept = (dense * (layers - mixtures) + mixed * mixtures + sent) * _in_flight(layout, first=first)
    if layout.recompute == "full" and layout.zero == WEIGHTS and trainer_behavior(layout.trainer).inputs_on_host:
        kept = 0.0
    mixture = mixtures > 0
    whole = count * _layer(model, layout, "none", mixture=mixture)
    if not _plain(layout):
        return kept, whole if layout.recompute == "full" else whole - (mixed if mixture else dense)
    inside = 0.0 if layout.compiled else IN_BACKWARD * _inside(model, mixture) / layout.tp
    return kept, whole - (mixed if mixture else dense) + count * inside


def logit_bytes(model: Transformer, layout: Layout) -> float:
    count = tokens(model, layout)
    if not _plain(layout):
        return FUSED_LOGIT * count * model.vocab / layout.tp
    ways = trainer_behavior(layout.trainer)
    size = LOSSES.get(layout.loss, ways.logit_bytes)
    if layout.tp == 1 or ways.whole_vocabulary:
        return size * count * model.vocab
    # The head's input is gathered, and the loss over split logits writes more passes than torch's own.
    copies = SPLIT_LOSS if layout.loss == "plain" and layout.framework == "torch" else 1.0
    return count * (size * copies * model.vocab / layout.tp + 2 * model.hidden)


def tokens(model: Transformer, layout: Layout) -> float:
    return layout.micro_batch * model.seq / layout.cp


def sequential_activation_bytes(model: SequentialModel, layout: Layout) -> float:
    kept = sum(layer.kept for layer in model.layers) * layout.micro_batch * _width(layout)
    return 2.0 * kept * (RECOMPUTED_STACK if layout.recompute == "full" else 1.0)


def _plain(layout: Layout) -> bool:
    return layout.framework == "torch" or trainer_behavior(layout.trainer).plain


def _width(layout: Layout) -> float:
    """Of a kept number, over two bytes."""
    return 2.0 if layout.dtype in ("fp32", "tf32") else 1.0


def _layer(model: Transformer, layout: Layout, recompute: str, *, mixture: bool) -> float:
    """Of a token: arXiv 2205.05198, for other attentions and feed-forward parts too."""
    if recompute == "full":
        return 2 * model.hidden / (layout.tp if layout.sequence_parallel else 1)
    scores = 0.0 if model.flash or recompute != "none" else 5 * model.seq * model.heads / layout.tp
    if _plain(layout):
        return _plain_layer(model, layout, recompute, mixture) + scores
    wide = 8 if model.gated else 10
    share = layout.tp if layout.sequence_parallel else 1
    return wide * model.hidden / share + _attention(model) / layout.tp + _feed_forward(model, layout, mixture) + scores


def _plain_layer(model: Transformer, layout: Layout, recompute: str, mixture: bool) -> float:
    """Plain modules: measured on one H200 with the trainer's models, within 3 %."""
    tp, share = layout.tp, layout.tp if layout.sequence_parallel else 1
    inside = _inside(model, mixture)
    routed = 4.0 * model.experts.per_token * model.hidden if mixture and model.experts else 0.0
    into = 2.0 if model.gated else 1.0
    if recompute == "selective":
        attended = 2.0 * model.heads * head_width(model) / tp
        products = (_attention(model) + 2 * into * inside) / tp - attended + 4 * model.hidden / share
        fused = 2 * model.hidden / share if layout.compiled else 0.0
        return 2 * model.hidden / share + attended + trainer_behavior(layout.trainer).kept_products * products - fused
    # What the norms make is gathered for the products of all ranks, and kept so.
    gathered = share if trainer_behavior(layout.trainer).gathers_again else 1
    wide = (6 if model.gated else 4) * model.hidden / share + 4 * model.hidden / gathered
    made = into + (1 if layout.compiled or not model.gated else 2)
    return wide + (_attention(model) + 2 * made * inside) / tp + routed


def _attention(model: Transformer) -> float:
    """Bytes of a token: queries, keys, values and what comes out."""
    if model.latent is None:
        width = head_width(model)
        return 2.0 * width * (model.heads * 2 + model.kv_heads * 2)
    latent = model.latent
    key = latent.nope + latent.rope
    narrow = 2 * (latent.query + latent.key_value + latent.rope)
    return 2.0 * model.heads * (2 * key + latent.nope + 2 * latent.value) + 2 * narrow


def _inside(model: Transformer, mixture: bool) -> float:
    """Numbers of a token inside the feed-forward part."""
    if not mixture or model.experts is None:
        return model.ffn
    return model.experts.ffn * (model.experts.per_token + model.experts.shared)


def _feed_forward(model: Transformer, layout: Layout, mixture: bool) -> float:
    routed = 4.0 * model.experts.per_token * model.hidden if mixture and model.experts else 0.0
    return 2.0 * (3 if model.gated else 2) * _inside(model, mixture) / layout.tp + routed


def _in_flight(layout: Layout, *, first: bool) -> float:
    """Micro-batches whose activations a stage holds at once."""
    if layout.pp == 1:
        return 1.0
    count = max(1, layout.micro_batches)
    if layout.schedule == "gpipe":
        return float(count)
    if not first:
        return 1.0
    more = 1 + (layout.pp - 1) / (layout.pp * layout.virtual_stages) if layout.virtual_stages > 1 else 1.0
    return min(float(count), layout.pp * more)
