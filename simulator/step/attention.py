"""Predict the seconds of attention between its projections, with flash kernels or unfused ones."""

from __future__ import annotations

from math import ceil

from simulator.layout import Layout
from simulator.model import Transformer
from simulator.parameters import head_width
from simulator.step.kernels import Kernels, PassSeconds, non_fp8_dtype

SINCE_HOPPER = ("hopper", "blackwell")
QUERY_BLOCK = 128
"""Queries per block of a flash kernel."""
HALF_SPEED_SEQ = 256
"""Sequence length at which flash attention is half as fast as on a long sequence."""
FEW_WAVES = 4
"""Waves of blocks below which a partial last wave matters."""
BATCHED_MATMUL_SHARE = 0.6
"""Share of the best matmul rate that batched products of narrow matrices reach."""
SCORE_BYTES = 12
"""Bytes read and written per score outside the products, forward: scale, mask, softmax, dropout."""


def attention_seconds(model: Transformer, layout: Layout, kernels: Kernels) -> PassSeconds:
    """Return the seconds of attention of one layer and micro-batch."""
    tokens, heads = layout.micro_batch * model.seq / layout.cp, model.heads / layout.tp
    if model.latent is None:
        widths = 2.0 * head_width(model)
    else:
        widths = float(model.latent.nope + model.latent.rope + model.latent.value)
    full = 2 * tokens * model.seq * heads * widths
    if not model.flash:
        return _unfused_seconds(layout, kernels, full, tokens * model.seq * heads)
    share = _flash_share(layout, kernels) * _utilization(model, layout, kernels, widths / 2)
    causal = 0.5 * full / (kernels.peak(non_fp8_dtype(layout.dtype)) * share)
    if layout.cp > 1:
        causal *= kernels.rates.ring
    return PassSeconds(causal, 2.5 * causal)


def _unfused_seconds(layout: Layout, kernels: Kernels, operations: float, scores: float) -> PassSeconds:
    """Return the time of batched products and of passes over the seq x seq scores in memory."""
    products = operations / (BATCHED_MATMUL_SHARE * kernels.peak(non_fp8_dtype(layout.dtype)))
    passes = kernels.moved(SCORE_BYTES * scores)
    return PassSeconds(products + passes, 2 * products + 1.2 * passes)


def _flash_share(layout: Layout, kernels: Kernels) -> float:
    rates = kernels.rates
    since_hopper = kernels.gpu.generation in SINCE_HOPPER
    if layout.early_flash:
        return rates.flash_early * (rates.flash_hopper / rates.flash if since_hopper else 1.0)
    if not since_hopper:
        return rates.flash
    if layout.framework != "torch":
        return rates.flash_fused
    return rates.flash_hopper


def _utilization(model: Transformer, layout: Layout, kernels: Kernels, width: float) -> float:
    """Return the share of its speed that flash attention keeps with short sequences, narrow heads or few blocks."""
    blocks = layout.micro_batch * model.heads / layout.tp * max(1.0, model.seq / layout.cp / QUERY_BLOCK)
    waves = blocks / kernels.gpu.multiprocessors
    last_wave = waves / ceil(waves) if waves < FEW_WAVES else 1.0
    return min(1.0, 0.85 + 0.15 * width / 128) * (model.seq / (model.seq + HALF_SPEED_SEQ)) * last_wave
