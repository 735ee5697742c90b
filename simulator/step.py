"""How long one optimizer step takes, in closed form, and what it needs of memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log, sqrt

from simulator import groups
from simulator.collectives import Op, time_s
from simulator.compute import Compute, LayerWork
from simulator.layout import Layout
from simulator.memory import Memory, memory
from simulator.model import Model
from simulator.parameters import Parameters, parameters
from simulator.rates import Rates, fitted
from simulator.system import System

LOW, HIGH = 0.88, 1.16


@dataclass(frozen=True, slots=True)
class Prediction:
    step_s: float
    low_s: float
    high_s: float
    """The true time lies between low and high in four of five runs."""
    parts: dict[str, float] = field(repr=False)
    """Seconds by what they are spent on; what is hidden behind something else is not in it."""
    memory: Memory = field(repr=False)
    fits: bool = True
    reason: str = ""
    bottleneck: str = ""


def predict(model: Model, layout: Layout, system: System, rates: Rates | None = None) -> Prediction:
    return _estimate(model, system, rates or fitted()).predict(layout)


class Estimate:
    """One model on one system: what does not change with the layout, and what was computed before."""

    def __init__(self, model: Model, system: System, rates: Rates) -> None:
        self.model, self.system, self.rates = model, system, rates
        self.parameters: Parameters = parameters(model)
        self.compute = Compute(model, system.gpu, rates)  # type: ignore[arg-type]

    def predict(self, layout: Layout) -> Prediction:
        parts = self.parts(layout)
        step = sum(parts.values())
        needed = memory(self.model, layout, self.system)
        return Prediction(step, step * LOW, step * HIGH, parts, needed, needed.fits, needed.reason, max(parts, key=parts.__getitem__))

    def parts(self, layout: Layout) -> dict[str, float]:
        count = max(1, layout.micro_batches)
        stage = self._stage(layout)
        pipeline = self._pipeline(layout, stage, count)
        data = self._data(layout, stage)
        per_rank = self._held(layout)
        update = self.compute.update(per_rank / (layout.dp * layout.cp if layout.zero else 1), layout)
        parts = {
            "compute": stage.products * count,
            "attention": stage.attention * count,
            "vocabulary": stage.head * count,
            "memory bound": stage.rest * count,
            "recompute": stage.again * count,
            "host": stage.host * count,
            "tensor": stage.tensor * count,
            "context": stage.context * count,
            "experts": stage.experts * count,
            "gather": stage.gather * count,
            "pipeline bubble": pipeline,
            "data": data,
            "optimizer": update,
            "step": self.rates.step_ms * 1e-3,
        }
        busy = sum(parts.values())
        parts["jitter"] = busy * self.rates.jitter * sqrt(2 * log(layout.gpus)) if layout.gpus > 1 else 0.0
        return parts

    def _stage(self, layout: Layout) -> Stage:
        """One micro-batch through the slowest stage."""
        rates, held = self.rates, self.parameters
        layers = held.layers / layout.pp
        mixtures = held.mixtures / layout.pp
        dense = layers - mixtures
        works: list[tuple[float, LayerWork, bool]] = []
        if dense:
            works.append((dense, self.compute.layer(layout, False), False))
        if mixtures:
            works.append((mixtures, self.compute.layer(layout, True), True))
        head = self.compute.head(layout)
        products = sum(n * (w.products.forward + w.products.backward) for n, w, _ in works)
        attention = sum(n * (w.attention.forward + w.attention.backward) for n, w, _ in works)
        rest = sum(n * (w.rest.forward + w.rest.backward) for n, w, _ in works)
        again = sum(n * w.again for n, w, _ in works)
        head_s = head.forward + head.backward
        tensor = layers * self._tensor(layout)
        context = layers * self._context(layout, attention / layers)
        experts = mixtures * self._all_to_all(layout) if layout.ep > 1 else 0.0
        forward = sum(n * w.forward for n, w, _ in works)
        backward = sum(n * w.backward for n, w, _ in works)
        gather = self._gather(layout, layers, forward, backward) if layout.zero == 3 else 0.0
        device = products + attention + rest + again + head_s + tensor + context + experts + gather
        host = max(0.0, self._host(layout, layers) - (device if self.system.gpu.runs_ahead else 0.0))
        return Stage(
            products, attention, rest, again, head_s, host, tensor, context, experts, gather, backward + head.backward
        )

    def _host(self, layout: Layout, layers: float) -> float:
        rates = self.rates
        if layout.compiled:
            each = rates.host_compiled_us
        else:
            each = rates.host_torch_us if layout.framework == "torch" else rates.host_megatron_us
        times = 2.5 if layout.recompute != "full" else 3.5
        if layout.tp > 1:
            each += rates.host_tensor_us
        sharded = 3 * rates.host_shard_us if layout.zero == 3 else 0.0
        return layers * (each * times + sharded) * 1e-6

    def _tensor(self, layout: Layout) -> float:
        if layout.tp == 1:
            return 0.0
        group = groups.tensor(layout, self.system)
        size = 2 * self.compute.tokens(layout) * self.model.hidden
        again = 1 if layout.recompute == "full" else 0
        if layout.sequence_parallel:
            each = self._time("all_gather", size, group) + self._time("reduce_scatter", size, group)
            return (4 + 2 * again) * each
        return (4 + 2 * again) * self._time("all_reduce", size, group)

    def _context(self, layout: Layout, attention: float) -> float:
        if layout.cp == 1:
            return 0.0
        width = self.model.head_width or self.model.hidden // self.model.heads
        size = 2 * 2 * self.compute.tokens(layout) * self.model.kv_heads * width / layout.tp * layout.cp
        moved = 3 * self._time("all_gather", size, groups.context(layout, self.system))
        return max(0.0, moved - attention) + 0.1 * min(moved, attention)

    def _all_to_all(self, layout: Layout) -> float:
        experts = self.model.experts
        size = 2 * self.compute.tokens(layout) * self.model.hidden * experts.per_token / layout.tp
        again = 2 if layout.recompute == "full" else 0
        return (4 + again) * self._time("all_to_all", size, groups.experts(layout, self.system))

    def _gather(self, layout: Layout, layers: float, forward: float, backward: float) -> float:
        """What parameters and gradients on the way add to one micro-batch under ZeRO-3."""
        shard = groups.data(layout, self.system)
        each, routed = self._layer_parameters(layout)
        over = groups.expert_data(layout, self.system)
        gather = self._time("all_gather", 2 * each, shard) + self._time("all_gather", 2 * routed, over)
        reduce = self._time("reduce_scatter", layout.gradient_bytes * each, shard)
        reduce += self._time("reduce_scatter", layout.gradient_bytes * routed, over)
        each += routed
        copies = groups.replicas(layout, self.system)
        if copies.ranks > 1:
            reduce += self._time("all_reduce", layout.gradient_bytes * each / shard.ranks, copies)
        if layout.adapters:
            reduce = 0.0
        behind = 1 - self.rates.gather_shown if layout.framework == "deepspeed" else 1.0
        one_forward, one_backward = behind * forward / layers, behind * backward / layers
        ends = gather + reduce
        shown = layers * (max(0.0, gather - one_forward) + max(0.0, gather + reduce - one_backward))
        hidden = layers * (min(gather, one_forward) + min(gather + reduce, one_backward))
        copied = 3 * self.compute.copied(2 * each) * layers
        vocabulary = (self.parameters.embedding + self.parameters.head) / layout.tp
        ends += self._time("all_gather", 2 * vocabulary, shard) + self._time(
            "reduce_scatter", layout.gradient_bytes * vocabulary, shard
        )
        return ends + shown + self.rates.slowed * hidden + copied

    def _data(self, layout: Layout, stage: Stage) -> float:
        if layout.zero == 3 or layout.dp * layout.cp == 1 or layout.adapters:
            return 0.0
        group = groups.data(layout, self.system)
        held = self._held(layout)
        size = layout.gradient_bytes * held * layout.compression
        if layout.zero == 0:
            reduce, gather = self._time("all_reduce", size, group), 0.0
        else:
            reduce, gather = self._time("reduce_scatter", size, group), self._time("all_gather", 2 * held, group)
        if layout.framework == "torch":
            last = self._time("all_reduce", min(size, layout.bucket_mb * 2**20), group)
            hidden = min(reduce, 0.9 * stage.backward)
            return max(last, reduce - hidden) + gather + self.rates.slowed * hidden
        hidden = min(reduce, stage.backward) * self.rates.gradients_hidden
        return reduce - hidden + gather * (1 - self.rates.gradients_hidden)

    def _pipeline(self, layout: Layout, stage: Stage, count: int) -> float:
        if layout.pp == 1:
            return 0.0
        one = stage.total - stage.head
        size = (
            2
            * self.compute.tokens(layout)
            * self.model.hidden
            / (layout.tp if layout.sequence_parallel or layout.framework == "megatron" else 1)
        )
        send = self._time("send", size, groups.pipeline(layout, self.system))
        bubble = (layout.pp - 1) / layout.virtual_stages * one
        sends = 2 * send * (count + layout.pp - 1) * layout.virtual_stages
        return bubble + sends

    def _held(self, layout: Layout) -> float:
        """Parameters of one rank of the fullest stage before ZeRO splits them."""
        held = self.parameters
        layers = held.layers / layout.pp
        mixtures = held.mixtures / layout.pp
        plain = layers * held.attention + (layers - mixtures) * held.dense + mixtures * held.shared
        routed = mixtures * held.experts * held.expert / layout.ep
        ends = (held.embedding + held.head) if layout.pp == 1 else max(held.embedding, held.head)
        return (plain + ends + routed) / layout.tp

    def _layer_parameters(self, layout: Layout) -> tuple[float, float]:
        """Of a mean layer on one rank before ZeRO-3 splits them: those of every rank, and of its own experts."""
        held = self.parameters
        plain = (
            held.attention + ((held.layers - held.mixtures) * held.dense + held.mixtures * held.shared) / held.layers
        )
        routed = held.mixtures * held.experts * held.expert / held.layers / layout.ep
        return plain / layout.tp, routed / layout.tp

    def _time(self, op: Op, size: float, group: groups.Group) -> float:
        return self.rates.links * time_s(op, size, group, self.system)


@dataclass(frozen=True, slots=True)
class Stage:
    products: float
    attention: float
    rest: float
    again: float
    head: float
    host: float
    tensor: float
    context: float
    experts: float
    gather: float
    backward: float

    @property
    def total(self) -> float:
        return (
            self.products
            + self.attention
            + self.rest
            + self.again
            + self.head
            + self.host
            + self.tensor
            + self.context
            + self.experts
            + self.gather
        )


_kept: dict[tuple[int, int, int], Estimate] = {}
KEEP = 64


def _estimate(model: Model, system: System, rates: Rates) -> Estimate:
    """By identity: hashing a model and a system costs more than a prediction may."""
    key = (id(model), id(system), id(rates))
    found = _kept.get(key)
    if found is None:
        if len(_kept) >= KEEP:
            _kept.clear()
        found = _kept[key] = Estimate(model, system, rates)
    return found
