"""Seconds that one GPU works on one micro-batch: products, attention, memory-bound rest, launches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from simulator.layout import Layout
from simulator.model import Transformer
from simulator.parameters import head_width, matrices, projections
from simulator.rates import Rates
from simulator.system import Gpu

TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.95), (128, 64, 0.8), (64, 64, 0.55))
"""Rows, columns and speed of the tiles that a matmul library picks from."""
HOPPER = 900.0
"""bf16 TFLOP/s from which a GPU counts as Hopper or later."""
UNTHROTTLED = 0.78
"""Dense TFLOP/s per watt of an A100."""
SPLIT = 8
"""Most parts that the inner dimension of a product is cut into when there are fewer tiles than multiprocessors."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """Of a GPU, forward and backward."""

    forward: float = 0.0
    inputs_back: float = 0.0
    weights_back: float = 0.0
    """Gradients of weights: nobody needs them where only adapters learn."""

    @property
    def backward(self) -> float:
        return self.inputs_back + self.weights_back

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(
            self.forward + other.forward, self.inputs_back + other.inputs_back, self.weights_back + other.weights_back
        )

    def __mul__(self, times: float) -> Seconds:
        return Seconds(self.forward * times, self.inputs_back * times, self.weights_back * times)


@dataclass(frozen=True, slots=True)
class LayerWork:
    """One layer on one rank for one micro-batch."""

    products: Seconds
    attention: Seconds
    rest: Seconds
    again: float
    """Forward work repeated in backward."""

    @property
    def forward(self) -> float:
        return self.products.forward + self.attention.forward + self.rest.forward

    @property
    def backward(self) -> float:
        return self.products.backward + self.attention.backward + self.rest.backward + self.again


class Compute:
    """Work of one model on one kind of GPU; results are kept, since a search asks for the same shapes again."""

    def __init__(self, model: Transformer, gpu: Gpu, rates: Rates) -> None:
        self.model = model
        self.gpu = gpu
        self.rates = rates
        self.cooled = self._cooled()
        self._products: dict[tuple[int, int, int, str], Seconds] = {}
        self._layers: dict[tuple[object, ...], LayerWork] = {}

    def layer(self, layout: Layout, mixture: bool) -> LayerWork:
        key = (layout.micro_batch, layout.tp, layout.cp, layout.ep, layout.sequence_parallel, layout.recompute,
               layout.dtype, layout.framework, layout.compiled, layout.adapters, mixture)  # fmt: skip
        if key not in self._layers:
            self._layers[key] = self._layer(layout, mixture)
        return self._layers[key]

    def head(self, layout: Layout) -> Seconds:
        """The product with the vocabulary and the loss."""
        model, tokens = self.model, self.tokens(layout)
        product = self._product(tokens, model.hidden, ceil(model.vocab / layout.tp), plain(layout.dtype))
        bytes_per_logit = 30 if layout.framework == "torch" and not layout.compiled else 14
        loss = self._moved(bytes_per_logit * tokens * model.vocab / layout.tp)
        return product + Seconds(loss / 2, loss / 2)

    def update(self, parameters: float, layout: Layout) -> float:
        """Adam on `parameters` of this rank."""
        per_parameter = 28 + 2 if layout.weight_bytes == 4 else 14
        seconds = self._moved(per_parameter * self.rates.update * parameters)
        return seconds

    def tokens(self, layout: Layout) -> float:
        return layout.micro_batch * self.model.seq / layout.cp

    def copied(self, size: float) -> float:
        """Bytes read and written once."""
        return self._moved(2 * size)

    def _layer(self, layout: Layout, mixture: bool) -> LayerWork:
        products = self._projections(layout)
        products += self._mixture(layout) if mixture else self._feed_forward(layout)
        attention = self._attention(layout)
        rest = self._rest(layout, mixture)
        if layout.adapters:
            products = replace(products, weights_back=0.0)
        return LayerWork(products, attention, rest, self._again(layout, products, attention, rest))

    def _projections(self, layout: Layout) -> Seconds:
        tokens, total = self.tokens(layout), Seconds()
        for index, (inputs, outputs, by_columns) in enumerate(projections(self.model)):
            if by_columns:
                total += self._product(tokens, inputs, outputs // layout.tp, layout.dtype)
            elif index == 0:
                total += self._product(tokens, inputs, outputs, layout.dtype)
            else:
                total += self._product(tokens, inputs // layout.tp, outputs, layout.dtype)
        return total

    def _feed_forward(self, layout: Layout) -> Seconds:
        return self._two_products(self.tokens(layout), self.model.ffn // layout.tp, layout.dtype)

    def _mixture(self, layout: Layout) -> Seconds:
        experts = self.model.experts
        assert experts is not None
        tokens = self.tokens(layout)
        mine = experts.count // layout.ep
        each = ceil(tokens * experts.per_token * layout.ep / experts.count * self.rates.imbalance)
        routed = self._two_products(each, experts.ffn // layout.tp, layout.dtype, together=mine)
        shared = self._two_products(tokens, experts.shared * experts.ffn // layout.tp, layout.dtype)
        router = self._product(tokens, self.model.hidden, experts.count, plain(layout.dtype))
        return routed + shared + router

    def _two_products(self, tokens: float, ffn: int, dtype: str, together: int = 1) -> Seconds:
        if ffn == 0:
            return Seconds()
        into = (matrices(self.model) - 1) * ffn
        up = self._product(tokens, self.model.hidden, into, dtype, together)
        return up + self._product(tokens, ffn, self.model.hidden, dtype, together)

    def _attention(self, layout: Layout) -> Seconds:
        model = self.model
        tokens, heads = self.tokens(layout), model.heads / layout.tp
        if model.latent is None:
            widths = 2.0 * head_width(model)
        else:
            widths = float(model.latent.nope + model.latent.rope + model.latent.value)
        full = 2 * tokens * model.seq * heads * widths
        if not model.flash:
            return self._plain_attention(layout, full, tokens * model.seq * heads)
        rate = self._peak(plain(layout.dtype)) * self._flash_share(layout) * self._filled(layout, widths / 2)
        causal = 0.5 * full
        return Seconds(causal / rate, 2.5 * causal / rate)

    def _plain_attention(self, layout: Layout, operations: float, scores: float) -> Seconds:
        """Batched products of narrow matrices, and passes over the seq x seq scores in memory."""
        products = operations / (0.6 * self._peak(plain(layout.dtype)))
        passes = self._moved(12 * scores)
        return Seconds(products + passes, 2 * products + 1.2 * passes)

    def _flash_share(self, layout: Layout) -> float:
        if self.gpu.peak_tflops.get("bf16", 0) < HOPPER:
            return self.rates.flash
        if layout.framework != "torch":
            return self.rates.flash_fused
        return self.rates.flash_compiled if layout.compiled else self.rates.flash_hopper

    def _filled(self, layout: Layout, width: float) -> float:
        """Flash attention loses on short sequences, narrow heads and few blocks."""
        model = self.model
        blocks = layout.micro_batch * model.heads / layout.tp * max(1.0, model.seq / layout.cp / 128)
        waves = blocks / self.gpu.multiprocessors
        return (
            min(1.0, 0.85 + 0.15 * width / 128) * (model.seq / (model.seq + 256)) * (waves / ceil(waves) if waves < 4 else 1.0)
        )

    def _rest(self, layout: Layout, mixture: bool) -> Seconds:
        model, tokens = self.model, self.tokens(layout)
        share = layout.tp if layout.sequence_parallel else 1
        wide = 12 * model.hidden / share + 2 * (model.heads + model.kv_heads) * head_width(model) / layout.tp
        inside = (3 if model.gated else 2) * model.ffn / layout.tp
        if mixture and model.experts is not None:
            used = model.experts.per_token + model.experts.shared
            inside = 3 * used * model.experts.ffn / layout.tp + 6 * model.experts.per_token * model.hidden
        moved = 2 * tokens * (wide + inside) * self._passes(layout)
        return Seconds(self._moved(moved), self._moved(2 * moved))

    def _passes(self, layout: Layout) -> float:
        rates = self.rates
        if layout.compiled:
            return rates.passes_compiled
        return rates.passes_torch if layout.framework == "torch" else rates.passes_megatron

    def _again(self, layout: Layout, products: Seconds, attention: Seconds, rest: Seconds) -> float:
        if layout.recompute == "none":
            return 0.0
        if layout.recompute == "full":
            return products.forward + attention.forward + rest.forward
        if layout.framework == "torch":
            return 0.5 * products.forward + rest.forward
        return attention.forward

    def _product(self, rows: float, inputs: int, outputs: int, dtype: str, together: int = 1) -> Seconds:
        """Forward, and both products of backward; `together` equal ones run as one kernel."""
        rows = max(1, ceil(rows))
        key = (rows, inputs, outputs * 1000 + together, dtype)
        found = self._products.get(key)
        if found is None:
            forward = self._matmul(rows, outputs, inputs, dtype, together)
            inputs_back = self._matmul(rows, inputs, outputs, dtype, together)
            weights_back = self._matmul(inputs, outputs, rows, dtype, together)
            found = self._products[key] = Seconds(forward, inputs_back, weights_back)
        return found

    def _matmul(self, m: int, n: int, k: int, dtype: str, together: int = 1) -> float:
        if self.gpu.products is not None:
            return together * self.gpu.products.seconds(m, n, k, dtype)
        peak = self._peak(dtype) * self.rates.matmul
        per_multiprocessor = peak / self.gpu.multiprocessors
        best = float("inf")
        for rows, columns, speed in TILES:
            tiles = ceil(m / rows) * ceil(n / columns) * together
            split = (
                min(SPLIT, self.gpu.multiprocessors // tiles, max(1, k // 512))
                if tiles < self.gpu.multiprocessors
                else 1
            )
            waves = ceil(tiles * max(1, split) / self.gpu.multiprocessors)
            tile = 2 * rows * columns * k / max(1, split) / (per_multiprocessor * speed) + self.rates.tile_us * 1e-6
            best = min(best, waves * tile)
        size = 1 if dtype == "fp8" else 2
        moved = self._moved(together * (size * (m * k + k * n) + 2 * m * n))
        return max(best, moved)

    def _peak(self, dtype: str) -> float:
        """The best matmul rate of this GPU in FLOP/s."""
        peaks = self.gpu.peak_tflops
        peak = peaks.get(dtype) or peaks.get("fp16", 0.0)
        kept = self.rates.fp8 if dtype == "fp8" else 1.0
        return peak * 1e12 * self.gpu.reached * kept * self.cooled

    def _cooled(self) -> float:
        """A GPU with more arithmetic per watt than an A100 runs at lower clocks under a long load."""
        dense = self.gpu.peak_tflops.get("fp16", 0.0) / self.gpu.watts
        return 1 - self.rates.throttle * max(0.0, dense - UNTHROTTLED)

    def _moved(self, size: float) -> float:
        return size / (self.gpu.memory_gb_s * 1e9 * self.rates.memory)


def plain(dtype: str) -> str:
    """What stays out of fp8: attention, the head, the router."""
    return "bf16" if dtype == "fp8" else dtype
