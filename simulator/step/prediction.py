"""How long one optimizer step takes, in closed form, and what it needs of memory."""

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
from simulator.step.traffic import SHARDED, ExchangeTimes

LAUNCHES = 2.5
"""Host time of a layer forward and backward over that of forward alone."""
GATHERS = 3
"""Times that the host starts the gathering of a sharded layer."""


@dataclass(frozen=True, slots=True)
class Prediction:
    step_s: float
    low_s: float
    high_s: float
    """The true time lies between low and high in four of five runs."""
    parts: dict[str, float] = field(repr=False)
    """Seconds by what they are spent on; what is hidden behind something else is not in it."""
    memory: MemoryPeak = field(repr=False)

    @property
    def fits(self) -> bool:
        return self.memory.fits

    @property
    def reason(self) -> str:
        """Why it does not fit, and what would: asked by few, and not cheap."""
        return self.memory.reason

    @property
    def bottleneck(self) -> str:
        return max(self.parts, key=self.parts.__getitem__)


def predict(
    model: Model, layout: Layout, system: System, rates: Rates | None = None, needed: MemoryPeak | None = None
) -> Prediction:
    """`needed` is what `memory` says of the same layout, for those who have asked it already."""
    parts = _estimate(model, system, rates or load_fitted_rates()).parts(layout)
    if layout.offload:
        # The host holds the optimizer's state, so it makes the update.
        parts |= {"optimizer": 0.0, "offload": offload_s(model, layout, system)}
    step = sum(parts.values())
    low, high = interval_factors(parts, step, system, layout.gpus)
    needed = needed or predict_memory(model, layout, system)
    return Prediction(step, step * low, step * high, parts, needed)


class StepEstimator(Protocol):
    def parts(self, layout: Layout) -> dict[str, float]: ...


class TransformerStep:
    """One transformer on one system: what does not change with the layout, and what was computed before."""

    def __init__(self, model: Transformer, system: System, rates: Rates) -> None:
        self.system, self.rates = system, rates
        self.held = count_parameters(model)
        self.compute = ComputeTimes(model, system.gpu, rates)
        self.traffic = ExchangeTimes(model, system, rates, self.held, self.compute.kernels)

    def parts(self, layout: Layout) -> dict[str, float]:
        count = max(1, layout.micro_batches)
        stage, backward = self._stage(layout)
        split = layout.dp * layout.cp if layout.zero else 1
        parts = {name: seconds * count for name, seconds in stage.items()}
        if layout.keeps_gathered:
            parts["gather"] = stage.pop("gather")
        parts["pipeline bubble"] = self._pipeline(layout, stage, count)
        parts["data"] = self.traffic.gradients(layout, backward)
        parts["optimizer"] = self.compute.update(self.traffic.parameters_on_rank(layout) / split, layout)
        parts["step"] = self._step(layout)
        busy = sum(parts.values())
        parts["jitter"] = busy * self.rates.jitter * sqrt(2 * log(layout.gpus)) if layout.gpus > 1 else 0.0
        return parts

    def _step(self, layout: Layout) -> float:
        if layout.framework != "torch":
            return 1e-3 * self.rates.step_megatron_ms
        return 1e-3 * self.rates.step_ms + 1e-6 * self.rates.step_layer_us * ceil(self.held.layers / layout.pp)

    def _stage(self, layout: Layout) -> tuple[dict[str, float], float]:
        """One micro-batch through the slowest stage by what it is spent on, and how much of it is backward."""
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
            "memory bound": sum(n * (work.rest.forward + work.rest.backward) for n, work in works),
            "recompute": sum(n * work.again for n, work in works),
            "tensor": layers * self.traffic.tensor(layout),
            "context": layers * self.traffic.context(layout, attention / layers),
            "experts": mixtures * self.traffic.experts(layout),
            "gather": self.traffic.gather(layout, layers, sum(n * work.forward for n, work in works), backward),
        }
        device = sum(stage.values()) if self.system.gpu.launches_ahead else 0.0
        stage["host"] = max(0.0, self._host(layout, layers, mixtures) - device)
        return stage, backward + head.backward

    def _head(self, layout: Layout, layer: float) -> PassSeconds:
        """What it adds to the last stage: where layers do not divide evenly, that stage has one less."""
        head = self.compute.head(layout)
        if layout.pp == 1 or self.held.layers % layout.pp == 0:
            return head
        whole = head.forward + head.backward
        left = max(0.0, whole - layer) / whole
        return PassSeconds(left * head.forward, left * head.inputs_back, left * head.weights_back)

    def _host(self, layout: Layout, layers: float, mixtures: float) -> float:
        """Seconds that launching takes."""
        rates = self.rates
        kinds = {"plain": rates.host_torch_us, "compiled": rates.host_compiled_us, "fused": rates.host_megatron_us}
        each = kinds[kernel_style(layout)]
        if layout.tp > 1:
            each += rates.host_tensor_us
        launched = each * LAUNCHES
        if layout.recompute == "full":
            launched += each + rates.host_again_us
        if layout.zero == SHARDED:
            times = 1 / max(1, layout.micro_batches) if layout.keeps_gathered else 1.0
            launched += GATHERS * rates.host_shard_us * times
        return (layers * launched + mixtures * LAUNCHES * rates.host_experts_us) * 1e-6

    def _pipeline(self, layout: Layout, stage: dict[str, float], count: int) -> float:
        if layout.pp == 1:
            return 0.0
        whole = sum(stage.values())
        idle = (layout.pp - 1) / layout.virtual_stages * (whole - stage["vocabulary"])
        relayed = self.rates.relayed * whole * count if layout.relays else 0.0
        return idle + relayed + self.traffic.sends(layout, count)


@dataclass(frozen=True)
class SequentialStep:
    model: SequentialModel
    system: System
    rates: Rates

    def parts(self, layout: Layout) -> dict[str, float]:
        return sequential_step_parts(self.model, layout, self.system, self.rates)


_kept: dict[tuple[int, int, int], tuple[StepEstimator, object]] = {}
KEEP = 64


def _estimate(model: Model, system: System, rates: Rates) -> StepEstimator:
    """By identity: hashing a model and a system costs more than a prediction may."""
    key = (id(model), id(system), id(rates))
    found = _kept.get(key)
    if found is None:
        if len(_kept) >= KEEP:
            _kept.clear()
        made: StepEstimator
        if isinstance(model, SequentialModel):
            made = SequentialStep(model, system, rates)
        else:
            made = TransformerStep(model, system, rates)
        # What the key names must live as long as the key does.
        found = _kept[key] = made, (model, system, rates)
    return found[0]
