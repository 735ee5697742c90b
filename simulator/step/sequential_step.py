"""Predict the step of a data-parallel ResNet or MLP, layer by layer."""

from __future__ import annotations

from math import log, sqrt

from simulator.collectives import collective_time_s, layout_groups
from simulator.hardware.rates import Rates
from simulator.hardware.system import System
from simulator.layout import Layout
from simulator.model import Layer, SequentialModel
from simulator.step.kernels import Kernels, PassSeconds, non_fp8_dtype

HOST_TIME_SHARE = 0.33
"""Host time of one layer, relative to a transformer's layer: a product, a norm, an activation; measured on one H200."""
FORWARD_AND_BACKWARD = 2.5
"""Host time of forward and backward, relative to forward."""
UPDATE_BYTES = 28
"""Bytes that the update reads and writes per parameter."""
DDP_OVERLAP_SHARE = 0.9
"""Share of backward that reductions can overlap."""
COMPILED_SHARE = 0.75
"""Share of the reads and writes outside products that remains in a compiled model; measured on one H200."""
NUMBER_BYTES = 2
"""Bytes per number read and written; with fp32 they are twice as large but half as many, without casts or copies."""
STEP_S = 0.5e-3
"""Fixed seconds per step without a profile: no clipping and no loss over a vocabulary."""
SHARDED_WEIGHTS = 3


def sequential_step_parts(model: SequentialModel, layout: Layout, system: System, rates: Rates) -> dict[str, float]:
    """Return the seconds of a step by component."""
    kernels = Kernels(system.gpu, rates)
    count = max(1, layout.micro_batches)
    products, elementwise = _work(model, layout, kernels)
    launching = len(model.layers) * HOST_TIME_SHARE * FORWARD_AND_BACKWARD * _launch_us(layout, rates) * 1e-6
    busy = products.forward + products.backward + elementwise
    host = max(0.0, launching - (busy if system.gpu.launches_ahead else 0.0))
    weights = sum(layer.weights for layer in model.layers)
    recompute = products.forward + elementwise / 3 if layout.recompute == "full" else 0.0
    parts = {
        "compute": count * (products.forward + products.backward),
        "memory bound": count * elementwise,
        "recompute": count * recompute,
        "host": count * host,
        "data": _exposed_exchange_s(layout, system, rates, weights, busy * DDP_OVERLAP_SHARE * 2 / 3),
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
        moved += NUMBER_BYTES * layer.moved * layout.micro_batch
    return products, kernels.moved(moved) * (COMPILED_SHARE if layout.compiled else 1.0)


def _dtype(layout: Layout, layer: Layer, kernels: Kernels) -> str:
    """Return the dtype of a product: torch runs fp32 convolutions, but not linear layers, in tf32 if it can."""
    convolved = layer.rows > 1
    return (
        "tf32"
        if convolved and layout.dtype == "fp32" and "tf32" in kernels.gpu.peak_tflops
        else non_fp8_dtype(layout.dtype)
    )


def _launch_us(layout: Layout, rates: Rates) -> float:
    return rates.host_compiled_us if layout.compiled else rates.host_torch_us


def _exposed_exchange_s(layout: Layout, system: System, rates: Rates, weights: float, backward_window: float) -> float:
    """Return the exposed time of reducing gradients in buckets, and of gathering sharded weights."""
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
        gathers = 2 if layout.zero == SHARDED_WEIGHTS else 1
        gather = collective_time_s("all_gather", 2 * weights, group, system)
        total = collective_time_s("reduce_scatter", size, group, system) + gathers * gather
        last = gather / gathers if layout.zero == SHARDED_WEIGHTS else gather
    exposed = max(rates.links * last, rates.links * total - backward_window)
    return exposed + rates.slowed * (rates.links * total - exposed)
