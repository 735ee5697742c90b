"""Bytes of activations saved for backward and of logits at the loss, on one rank."""

from __future__ import annotations

from simulator.layout import Layout
from simulator.memory.state import WEIGHTS
from simulator.model import SequentialModel, Transformer
from simulator.parameters import head_width
from simulator.trainers import trainer_behavior

FUSED_LOGIT_BYTES = 6
"""Bytes per logit at the loss, with fused kernels."""
LOGIT_BYTES_BY_LOSS = {"compiled": 4.0, "chunked": 4.0, "fused": 0.5}
"""Bytes per logit with a loss other than torch's: bf16 logits and their gradient, or a chunk of them."""
IN_HEAD_LOGIT_BYTES = 8
"""Bytes per logit of a chunk in trainer/models/cross_entropy.py: logits and their log-probabilities in fp32."""
LOSS_PARALLEL_FACTOR = 4 / 3
"""Copies of logits in torch's loss_parallel, relative to its plain loss: separate exponentials and shifted logits."""
BACKWARD_INNER_BYTES = 3
"""Bytes per inner number of the feed-forward block that unfused backward holds; measured 2.6 to 3.1."""
RECOMPUTED_CONVOLUTION_SHARE = 0.3
"""Share of saved activations that remains when blocks of convolutions are recomputed."""


def activation_bytes(model: Transformer, layout: Layout, mixtures: float, *, first: bool) -> tuple[float, float]:
    """Return the bytes saved for backward, and those also alive while one layer is in backward."""
    layers = model.layers / layout.pp
    count = tokens(model, layout) * _relative_size(layout)
    dense = count * _layer(model, layout, layout.recompute, mixture=False)
    mixed = count * _layer(model, layout, layout.recompute, mixture=True) if mixtures else 0.0
    outputs = count * 2 * model.hidden if layout.pp > 1 and trainer_behavior(layout.trainer).keeps_outputs else 0.0
    saved = (dense * (layers - mixtures) + mixed * mixtures + outputs) * _in_flight(layout, first=first)
    if layout.recompute == "full" and layout.zero == WEIGHTS and trainer_behavior(layout.trainer).inputs_on_host:
        saved = 0.0
    mixture = mixtures > 0
    full_layer = count * _layer(model, layout, "none", mixture=mixture)
    if not _is_unfused(layout):
        return saved, full_layer if layout.recompute == "full" else full_layer - (mixed if mixture else dense)
    inner = 0.0 if layout.compiled else BACKWARD_INNER_BYTES * _inner_width(model, mixture) / layout.tp
    return saved, full_layer - (mixed if mixture else dense) + count * inner


def logit_bytes(model: Transformer, layout: Layout) -> float:
    """Return the bytes of logits at the peak of the loss, and of gradients that are computed along with it."""
    count = tokens(model, layout)
    if not _is_unfused(layout):
        return FUSED_LOGIT_BYTES * count * model.vocab / layout.tp
    if layout.loss == "in_head":
        return _in_head_bytes(model, layout)
    behavior = trainer_behavior(layout.trainer)
    size = LOGIT_BYTES_BY_LOSS.get(layout.loss, behavior.logit_bytes)
    if layout.tp == 1 or behavior.whole_vocabulary:
        return size * count * model.vocab
    # The input of the head is gathered, and the loss over sharded logits makes more copies than torch's own.
    copies = LOSS_PARALLEL_FACTOR if layout.loss == "plain" and layout.framework == "torch" else 1.0
    return count * (size * copies * model.vocab / layout.tp + 2 * model.hidden)


def tokens(model: Transformer, layout: Layout) -> float:
    """Return the tokens of a micro-batch on one rank."""
    return layout.micro_batch * model.seq / layout.cp


def sequential_activation_bytes(model: SequentialModel, layout: Layout) -> float:
    """Return the bytes that a ResNet or MLP saves for backward."""
    saved = sum(layer.saved for layer in model.layers) * layout.micro_batch * _relative_size(layout)
    return 2.0 * saved * (RECOMPUTED_CONVOLUTION_SHARE if layout.recompute == "full" else 1.0)


def _in_head_bytes(model: Transformer, layout: Layout) -> float:
    """Return the bytes of a loss in chunks: one chunk of logits, the head's gradient, and that of the hidden states.

    The head's gradient is summed over chunks in fp32; the summand of a chunk needs its logits in the products' type.
    """
    size, count = 2 * _relative_size(layout), tokens(model, layout)
    chunk = min(count, layout.chunk_tokens or count)
    logits = chunk * model.vocab / layout.tp
    head = 0.0 if layout.adapters else model.vocab * model.hidden / layout.tp
    summed = 4 * head if chunk < count else 0.0
    at_logits = IN_HEAD_LOGIT_BYTES * logits + summed
    at_products = size * logits + (4 + (size if size < 4 else 0)) * head  # noqa: PLR2004 bytes of fp32
    return max(at_logits, at_products) + 2 * size * count * model.hidden


def _is_unfused(layout: Layout) -> bool:
    return layout.framework == "torch" or trainer_behavior(layout.trainer).plain


def _relative_size(layout: Layout) -> float:
    """Return the size of a saved number, relative to two bytes."""
    return 2.0 if layout.dtype in ("fp32", "tf32") else 1.0


def _layer(model: Transformer, layout: Layout, recompute: str, *, mixture: bool) -> float:
    """Return the bytes that a layer saves per token: arXiv 2205.05198, extended to other attention and feed-forward."""
    if recompute == "full":
        return 2 * model.hidden / (layout.tp if layout.sequence_parallel else 1)
    scores = 0.0 if model.flash or recompute != "none" else 5 * model.seq * model.heads / layout.tp
    if _is_unfused(layout):
        return _unfused_layer(model, layout, recompute, mixture) + scores
    wide = 8 if model.gated else 10
    share = layout.tp if layout.sequence_parallel else 1
    return wide * model.hidden / share + _attention(model) / layout.tp + _feed_forward(model, layout, mixture) + scores


def _unfused_layer(model: Transformer, layout: Layout, recompute: str, mixture: bool) -> float:
    """Return the bytes per token of unfused modules; within 3 % of the trainer's models on one H200."""
    tp, share = layout.tp, layout.tp if layout.sequence_parallel else 1
    inner = _inner_width(model, mixture)
    routed = 4.0 * model.experts.per_token * model.hidden if mixture and model.experts else 0.0
    into = 2.0 if model.gated else 1.0
    if recompute == "selective":
        attended = 2.0 * model.heads * head_width(model) / tp
        products = (_attention(model) + 2 * into * inner) / tp - attended + 4 * model.hidden / share
        fused = 2 * model.hidden / share if layout.compiled else 0.0
        return 2 * model.hidden / share + attended + trainer_behavior(layout.trainer).saved_products * products - fused
    # The outputs of norms are gathered for the products of all ranks and saved unsharded.
    gathered = share if trainer_behavior(layout.trainer).gathers_again else 1
    wide = (6 if model.gated else 4) * model.hidden / share + 4 * model.hidden / gathered
    inner_copies = into + (1 if layout.compiled or not model.gated else 2)
    return wide + (_attention(model) + _gathered_keys(model, layout) + 2 * inner_copies * inner) / tp + routed


def _attention(model: Transformer) -> float:
    """Return the bytes per token of queries, keys, values and the output."""
    if model.latent is None:
        width = head_width(model)
        return 2.0 * width * (model.heads * 2 + model.kv_heads * 2)
    latent = model.latent
    key = latent.nope + latent.rope
    narrow = 2 * (latent.query + latent.key_value + latent.rope)
    return 2.0 * model.heads * (2 * key + latent.nope + 2 * latent.value) + 2 * narrow


def _gathered_keys(model: Transformer, layout: Layout) -> float:
    """Return the bytes of keys and values of other context-parallel ranks, per token of this rank."""
    return 4.0 * model.kv_heads * head_width(model) * (layout.cp - 1) if layout.gathers_keys else 0.0


def _inner_width(model: Transformer, mixture: bool) -> float:
    """Return the inner width of the feed-forward block, summed over the experts of a token."""
    if not mixture or model.experts is None:
        return model.ffn
    return model.experts.ffn * (model.experts.per_token + model.experts.shared)


def _feed_forward(model: Transformer, layout: Layout, mixture: bool) -> float:
    routed = 4.0 * model.experts.per_token * model.hidden if mixture and model.experts else 0.0
    return 2.0 * (3 if model.gated else 2) * _inner_width(model, mixture) / layout.tp + routed


def _in_flight(layout: Layout, *, first: bool) -> float:
    """Return the number of micro-batches whose activations a stage holds at once."""
    if layout.pp == 1:
        return 1.0
    count = max(1, layout.micro_batches)
    if layout.schedule == "gpipe":
        return float(count)
    # With zero_bubble, later stages defer the gradients of more weights, and store as much as the first one.
    if not first and layout.schedule != "zero_bubble":
        return 1.0
    more = 1 + (layout.pp - 1) / (layout.pp * layout.virtual_stages) if layout.virtual_stages > 1 else 1.0
    return min(float(count), layout.pp * more)
