"""Predict the time of one optimizer step in closed form, and its memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, log, sqrt
from typing import Protocol

from simulator.hardware.rates import Rates, load_fitted_rates
from simulator.hardware.system import System
from simulator.layout import Layout
from simulator.memory.peak import MemoryPeak, predict_memory
from simulator.model import Model, SequentialModel, Transformer
from simulator.parameters import count_parameters
from simulator.step.compute import ComputeTimes, kernel_style
from simulator.step.interval import interval_factors
from simulator.step.kernels import PassSeconds
from simulator.step.offload import offload_s
from simulator.step.sequential_step import sequential_step_parts
from simulator.step.traffic import SHARDED_WEIGHTS, ExchangeTimes

FORWARD_AND_BACKWARD = 2.5
"""Host time of forward and backward of a layer, relative to forward."""
GATHERS_PER_LAYER = 3
"""Collectives that the host starts per sharded layer and micro-batch."""
CACHE_SIZE = 64
"""Combinations of model, system and constants whose estimators are cached."""
ZERO_BUBBLE_SHARE = 1 / 3
"""The bubble of zero_bubble relative to 1f1b, if a forward pass and each part of a backward pass take equally long."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted time and memory of one optimizer step."""

    step_s: float
    low_s: float
    high_s: float
    """The measured time lies between low and high in four of five runs."""
    parts: dict[str, float] = field(repr=False)
    """Exposed seconds by component; overlapped time is not counted."""
    memory: MemoryPeak = field(repr=False)

    @property
    def fits(self) -> bool:
        return self.memory.fits

    @property
    def reason(self) -> str:
        """Why it exceeds memory, and which change helps; computed on demand because it is slow."""
        return self.memory.reason

    @property
    def bottleneck(self) -> str:
        return max(self.parts, key=self.parts.__getitem__)


def predict(
    model: Model, layout: Layout, system: System, rates: Rates | None = None, needed: MemoryPeak | None = None
) -> Prediction:
    """Predict a step; `needed` is the layout's `predict_memory` result if the caller has it already."""
    parts = _estimate(model, system, rates or load_fitted_rates()).parts(layout)
    if layout.offload:
        # The host holds the optimizer state, so it also computes the update.
        parts |= {"optimizer": 0.0, "offload": offload_s(model, layout, system)}
    step = sum(parts.values())
    low, high = interval_factors(parts, step, system, layout.gpus)
    needed = needed or predict_memory(model, layout, system)
    return Prediction(step, step * low, step * high, parts, needed)


class StepEstimator(Protocol):
    """Estimates the components of a step for one model on one system."""

    def parts(self, layout: Layout) -> dict[str, float]: ...


class TransformerStep:
    """Step estimator of a transformer: everything that does not depend on the layout, and cached results."""

    def __init__(self, model: Transformer, system: System, rates: Rates) -> None:
        self.system, self.rates = system, rates
        self.held = count_parameters(model)
        self.compute = ComputeTimes(model, system.gpu, rates)
        self.exchanges = ExchangeTimes(model, system, rates, self.held, self.compute.kernels)

    def parts(self, layout: Layout) -> dict[str, float]:
        count = max(1, layout.micro_batches)
        stage, backward = self._stage(layout)
        split = layout.dp * layout.cp if layout.zero else 1
        parts = {name: seconds * count for name, seconds in stage.items()}
        if layout.keeps_gathered:
            parts["gather"] = stage.pop("gather")
        parts["pipeline bubble"] = self._bubble(layout, stage, count)
        parts["data"] = self.exchanges.gradients(layout, backward)
        parts["optimizer"] = self.compute.update(self.exchanges.parameters_on_rank(layout) / split, layout)
        parts["step"] = self._fixed_s(layout)
        busy = sum(parts.values())
        parts["jitter"] = busy * self.rates.jitter * sqrt(2 * log(layout.gpus)) if layout.gpus > 1 else 0.0
        return parts

    def _fixed_s(self, layout: Layout) -> float:
        if layout.framework != "torch":
            return 1e-3 * self.rates.step_megatron_ms
        return 1e-3 * self.rates.step_ms + 1e-6 * self.rates.step_layer_us * ceil(self.held.layers / layout.pp)

    def _stage(self, layout: Layout) -> tuple[dict[str, float], float]:
        """Return the seconds of one micro-batch on the slowest stage by component, and those of its backward."""
        layers = ceil(self.held.layers / layout.pp)
        mixtures = self.held.mixtures * layers / self.held.layers
        works = []
        if layers > mixtures:
            works.append((layers - mixtures, self.compute.layer(layout, False)))
        if mixtures:
            works.append((mixtures, self.compute.layer(layout, True)))
        head = self._head(layout, sum(n * (work.forward + work.backward) for n, work in works) / layers)
        backward = sum(n * work.backward for n, work in works)
        attention = sum(n * (work.attention.forward + work.attention.backward) for n, work in works)
        stage = {
            "compute": sum(n * (work.products.forward + work.products.backward) for n, work in works),
            "attention": attention,
            "vocabulary": head.forward + head.backward,
            "memory bound": sum(n * (work.elementwise.forward + work.elementwise.backward) for n, work in works),
            "recompute": sum(n * work.recompute for n, work in works),
            "tensor": layers * self.exchanges.tensor(layout),
            "context": layers * self.exchanges.context(layout, attention / layers),
            "experts": mixtures * self.exchanges.experts(layout),
            "gather": self.exchanges.gather(layout, layers, sum(n * work.forward for n, work in works), backward),
        }
        device = sum(stage.values()) if self.system.gpu.launches_ahead else 0.0
        stage["host"] = max(0.0, self._host(layout, layers, mixtures) - device)
        return stage, backward + head.backward

    def _head(self, layout: Layout, layer: float) -> PassSeconds:
        """Return what the head adds to the last stage, which has one layer less if layers do not divide evenly."""
        head = self.compute.head(layout)
        if layout.pp == 1 or self.held.layers % layout.pp == 0:
            return head
        whole = head.forward + head.backward
        left = max(0.0, whole - layer) / whole
        return PassSeconds(left * head.forward, left * head.input_gradients, left * head.weight_gradients)

    def _host(self, layout: Layout, layers: float, mixtures: float) -> float:
        """Return the seconds that the host needs to launch kernels."""
        rates = self.rates
        kinds = {"plain": rates.host_torch_us, "compiled": rates.host_compiled_us, "fused": rates.host_megatron_us}
        each = kinds[kernel_style(layout)]
        if layout.tp > 1:
            each += rates.host_tensor_us
        launched = each * FORWARD_AND_BACKWARD
        if layout.recompute == "full":
            launched += each + rates.host_again_us
        if layout.zero == SHARDED_WEIGHTS:
            times = 1 / max(1, layout.micro_batches) if layout.keeps_gathered else 1.0
            launched += GATHERS_PER_LAYER * rates.host_shard_us * times
        return (layers * launched + mixtures * FORWARD_AND_BACKWARD * rates.host_experts_us) * 1e-6

    def _bubble(self, layout: Layout, stage: dict[str, float], count: int) -> float:
        """Return the seconds that pipeline stages wait for each other."""
        if layout.pp == 1:
            return 0.0
        whole = sum(stage.values())
        share = ZERO_BUBBLE_SHARE if layout.schedule == "zero_bubble" else 1 / layout.virtual_stages
        idle = (layout.pp - 1) * share * (whole - stage["vocabulary"])
        relayed = self.rates.relayed * whole * count if layout.relays else 0.0
        return idle + relayed + self.exchanges.sends(layout, count)


@dataclass(frozen=True)
class SequentialStep:
    """Step estimator of a ResNet or MLP."""

    model: SequentialModel
    system: System
    rates: Rates

    def parts(self, layout: Layout) -> dict[str, float]:
        return sequential_step_parts(self.model, layout, self.system, self.rates)


_cache: dict[tuple[int, int, int], tuple[StepEstimator, object]] = {}


def _estimate(model: Model, system: System, rates: Rates) -> StepEstimator:
    """Return a cached estimator, keyed by identity: hashing a model and a system takes longer than a prediction."""
    key = (id(model), id(system), id(rates))
    entry = _cache.get(key)
    if entry is None:
        if len(_cache) >= CACHE_SIZE:
            _cache.clear()
        estimator: StepEstimator
        if isinstance(model, SequentialModel):
            estimator = SequentialStep(model, system, rates)
        else:
            estimator = TransformerStep(model, system, rates)
        # The entry keeps the objects alive, so that their ids are not reused.
        entry = _cache[key] = estimator, (model, system, rates)
    return entry[0]
