"""Predict the seconds that one GPU computes: matrix products, attention, and memory-bound kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from simulator.hardware.rates import Rates
from simulator.hardware.system import Gpu
from simulator.layout import Layout
from simulator.model import Experts, Transformer
from simulator.parameters import feed_forward_matrices, head_width, list_projections
from simulator.step.attention import attention_seconds
from simulator.step.kernels import SCALED, Kernels, PassSeconds, non_fp8_dtype
from simulator.step.update import update_bytes
from simulator.trainers import trainer_behavior

SMALL_KERNELS = {"plain": 20, "fused": 12, "compiled": 6}
"""Kernels launched per layer and forward in addition to the matrix products, by kernel style."""
LOGIT_BYTES, LOGIT_BYTES_FUSED = 30, 14
"""Bytes read and written per logit by the loss and its gradient."""


@dataclass(frozen=True, slots=True)
class LayerWork:
    """Seconds of one layer on one rank for one micro-batch."""

    products: PassSeconds
    attention: PassSeconds
    elementwise: PassSeconds
    """Memory-bound kernels: norms, activations, additions."""
    recompute: float
    """Forward work repeated in backward."""

    @property
    def forward(self) -> float:
        return self.products.forward + self.attention.forward + self.elementwise.forward

    @property
    def backward(self) -> float:
        return self.products.backward + self.attention.backward + self.elementwise.backward + self.recompute


class ComputeTimes:
    """Compute times of one transformer on one kind of GPU, cached because a search repeats the same shapes."""

    def __init__(self, model: Transformer, gpu: Gpu, rates: Rates) -> None:
        self.model, self.rates = model, rates
        self.kernels = Kernels(gpu, rates)
        self._layers: dict[tuple[object, ...], LayerWork] = {}
        self._heads: dict[tuple[object, ...], PassSeconds] = {}

    def layer(self, layout: Layout, mixture: bool) -> LayerWork:
        """Return the work of one layer; `mixture` selects a mixture-of-experts layer."""
        key = (
            layout.micro_batch, layout.tp, layout.cp, layout.ep, layout.sequence_parallel, layout.recompute,
            layout.dtype, layout.framework, layout.compiled, layout.adapters, layout.early_flash, layout.deduplicates,
            layout.trainer, mixture,
        )  # fmt: skip
        work = self._layers.get(key)
        if work is None:
            work = self._layers[key] = self._layer(layout, mixture)
        return work

    def head(self, layout: Layout) -> PassSeconds:
        """Return the seconds of the output projection and the loss."""
        key = (layout.micro_batch, layout.tp, layout.cp, layout.dtype, layout.framework, layout.compiled)
        seconds = self._heads.get(key)
        if seconds is None:
            seconds = self._heads[key] = self._head(layout)
        return seconds

    def update(self, parameters: float, layout: Layout) -> float:
        """Return the seconds of Adam's update of `parameters`."""
        return self.kernels.moved(update_bytes(layout) * self.rates.update * parameters)

    def tokens(self, layout: Layout) -> float:
        return layout.micro_batch * self.model.seq / layout.cp

    def copied(self, size: float) -> float:
        """Return the seconds to read and write `size` bytes once."""
        return self.kernels.moved(2 * size)

    def _head(self, layout: Layout) -> PassSeconds:
        tokens, vocabulary = self.tokens(layout), self.model.vocab / layout.tp
        product = self.kernels.product(tokens, self.model.hidden, ceil(vocabulary), non_fp8_dtype(layout.dtype))
        each = LOGIT_BYTES if kernel_style(layout) == "plain" else LOGIT_BYTES_FUSED
        loss = self.kernels.moved(each * self.rates.logits * tokens * vocabulary)
        return product + PassSeconds(loss / 2, loss / 2)

    def _layer(self, layout: Layout, mixture: bool) -> LayerWork:
        products = self._projections(layout)
        experts = self.model.experts if mixture else None
        products += self._mixture(layout, experts) if experts else self._feed_forward(layout)
        scores = attention_seconds(self.model, layout, self.kernels)
        elementwise = self._elementwise(layout, mixture)
        if layout.adapters:
            products = replace(products, weight_gradients=0.0)
        return LayerWork(products, scores, elementwise, _recompute_s(layout, products, scores, elementwise))

    def _projections(self, layout: Layout) -> PassSeconds:
        tokens, total, dtype = self.tokens(layout), PassSeconds(), product_dtype(layout)
        for index, (inputs, outputs, by_columns) in enumerate(list_projections(self.model)):
            if by_columns:
                total += self.kernels.product(tokens, inputs, outputs // layout.tp, dtype)
            elif index == 0:
                total += self.kernels.product(tokens, inputs, outputs, dtype)
            else:
                total += self.kernels.product(tokens, inputs // layout.tp, outputs, dtype)
        return total

    def _feed_forward(self, layout: Layout) -> PassSeconds:
        return self._two_products(self.tokens(layout), self.model.ffn // layout.tp, product_dtype(layout))

    def _mixture(self, layout: Layout, experts: Experts) -> PassSeconds:
        tokens = self.tokens(layout)
        local_experts = experts.count // layout.ep
        fullest = 1.0 if trainer_behavior(layout.trainer).routes_evenly else self.rates.imbalance
        each = ceil(tokens * experts.per_token * layout.ep / experts.count * fullest)
        routed = self._two_products(each, experts.ffn // layout.tp, product_dtype(layout), together=local_experts)
        shared = self._two_products(tokens, experts.shared * experts.ffn // layout.tp, product_dtype(layout))
        router = self.kernels.product(tokens, self.model.hidden, experts.count, non_fp8_dtype(layout.dtype))
        return routed + shared + router

    def _two_products(self, tokens: float, ffn: int, dtype: str, together: int = 1) -> PassSeconds:
        if ffn == 0:
            return PassSeconds()
        into = (feed_forward_matrices(self.model) - 1) * ffn
        up = self.kernels.product(tokens, self.model.hidden, into, dtype, together)
        return up + self.kernels.product(tokens, ffn, self.model.hidden, dtype, together)

    def _elementwise(self, layout: Layout, mixture: bool) -> PassSeconds:
        model, rates = self.model, self.rates
        share = layout.tp if layout.sequence_parallel else 1
        wide = 12 * model.hidden / share + 2 * (model.heads + model.kv_heads) * head_width(model) / layout.tp
        inside = (3 if model.gated else 2) * model.ffn / layout.tp
        routed = 0.0
        if mixture and model.experts is not None:
            used = model.experts.per_token + model.experts.shared
            inside = 3 * used * model.experts.ffn / layout.tp
            routed = rates.permute * model.experts.per_token * model.hidden
            if layout.deduplicates:
                routed /= 2
        kind = kernel_style(layout)
        unfused = rates.passes_gated if model.gated else rates.passes_torch
        passes = {"plain": unfused, "compiled": rates.passes_compiled, "fused": rates.passes_megatron}[kind]
        moved = self.kernels.moved(2 * self.tokens(layout) * ((wide + inside) * passes + routed))
        measured = self.kernels.gpu.products is not None
        floor = 0.0 if measured else SMALL_KERNELS[kind] * rates.kernel_us * 1e-6
        return PassSeconds(moved + floor, 2 * (moved + floor))


def product_dtype(layout: Layout) -> str:
    """Return the dtype of the layers' products; unfused fp8 first searches each tensor for its scale."""
    return SCALED if layout.dtype == "fp8" and layout.framework == "torch" else layout.dtype


def kernel_style(layout: Layout) -> str:
    """Return the style of the memory-bound kernels: plain modules, compiled, or fused by hand."""
    if layout.compiled:
        return "compiled"
    return "plain" if layout.framework == "torch" else "fused"


def _recompute_s(layout: Layout, products: PassSeconds, scores: PassSeconds, elementwise: PassSeconds) -> float:
    if layout.recompute == "none":
        return 0.0
    if layout.recompute == "full":
        return products.forward + scores.forward + elementwise.forward
    if layout.framework == "torch":
        return 0.5 * products.forward + elementwise.forward
    return scores.forward
