"""The step of a model that is no transformer (ResNet, MLP): products layer by layer, data parallel."""

from __future__ import annotations

from math import log, sqrt

from simulator.collectives import collective_time_s, layout_groups
from simulator.hardware.rates import Rates
from simulator.hardware.system import System
from simulator.layout import Layout
from simulator.model import Layer, SequentialModel
from simulator.step.kernels import Kernels, PassSeconds, non_fp8_dtype

LAUNCHED = 0.33
"""Host time of one such layer over that of a transformer's: a product, a norm, an activation; measured on one H200."""
LAUNCHES = 2.5
UPDATE_BYTES = 28
BEHIND_BACKWARD = 0.9
FUSED = 0.75
"""Reads and writes beside products that are left where the model is compiled; measured on one H200."""
NUMBER = 2
"""Bytes of what is read and written. With fp32 they are twice as large and half as many: nothing is cast or copied."""
STEP_S = 0.5e-3
"""Of one step, whatever its size, where no profile says it: no clipping and no loss over a vocabulary."""
SHARDED = 3


def sequential_step_parts(model: SequentialModel, layout: Layout, system: System, rates: Rates) -> dict[str, float]:
    kernels = Kernels(system.gpu, rates)
    count = max(1, layout.micro_batches)
    products, rest = _work(model, layout, kernels)
    launching = len(model.layers) * LAUNCHED * LAUNCHES * _launch_us(layout, rates) * 1e-6
    busy = products.forward + products.backward + rest
    host = max(0.0, launching - (busy if system.gpu.launches_ahead else 0.0))
    weights = sum(layer.weights for layer in model.layers)
    again = products.forward + rest / 3 if layout.recompute == "full" else 0.0
    parts = {
        "compute": count * (products.forward + products.backward),
        "memory bound": count * rest,
        "recompute": count * again,
        "host": count * host,
        "data": _exchanged(layout, system, rates, weights, busy * BEHIND_BACKWARD * 2 / 3),
        "optimizer": kernels.moved(UPDATE_BYTES * rates.update * weights / (layout.dp if layout.zero else 1)),
        "step": rates.step_ms * 1e-3 if system.gpu.products else STEP_S,
    }
    parts["jitter"] = sum(parts.values()) * rates.jitter * sqrt(2 * log(layout.gpus)) if layout.gpus > 1 else 0.0
    return parts


def _work(model: SequentialModel, layout: Layout, kernels: Kernels) -> tuple[PassSeconds, float]:
    products, moved = PassSeconds(), 0.0
    for layer in model.layers:
        rows = layer.rows * layout.micro_batch
        products += kernels.product(rows, layer.inner, layer.columns, _dtype(layout, layer, kernels))
        moved += NUMBER * layer.moved * layout.micro_batch
    return products, kernels.moved(moved) * (FUSED if layout.compiled else 1.0)


def _dtype(layout: Layout, layer: Layer, kernels: Kernels) -> str:
    """Torch lets convolutions of fp32 use tf32 where a GPU has it; products it does not."""
    convolved = layer.rows > 1
    return (
        "tf32"
        if convolved and layout.dtype == "fp32" and "tf32" in kernels.gpu.peak_tflops
        else non_fp8_dtype(layout.dtype)
    )


def _launch_us(layout: Layout, rates: Rates) -> float:
    return rates.host_compiled_us if layout.compiled else rates.host_torch_us


def _exchanged(layout: Layout, system: System, rates: Rates, weights: float, window: float) -> float:
    """Gradients on their way behind backward, in buckets; weights too where they are split."""
    if layout.dp == 1:
        return 0.0
    group = layout_groups.data_group(layout, system)
    size = layout.gradient_bytes * weights * layout.compression
    if layout.zero == 0:
        total, last = (
            (collective_time_s("all_reduce", part, group, system))
            for part in (size, min(size, layout.bucket_mb * 2**20))
        )
    else:
        gathers = 2 if layout.zero == SHARDED else 1
        gather = collective_time_s("all_gather", 2 * weights, group, system)
        total = collective_time_s("reduce_scatter", size, group, system) + gathers * gather
        last = gather / gathers if layout.zero == SHARDED else gather
    shown = max(rates.links * last, rates.links * total - window)
    return shown + rates.slowed * (rates.links * total - shown)
