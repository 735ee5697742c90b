"""Fit the rates that a prediction needs to the measurements of one machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log, sqrt
from typing import Any

from simulator.hardware.curves import ExchangeCurve, ProductCurve
from simulator.hardware.rates import Rates, load_fitted_rates
from simulator.hardware.system import Gpu, System
from simulator.layout import Layout
from simulator.machines.nonnegative import solve_quiet
from simulator.model import Transformer
from simulator.step.compute import ComputeTimes
from simulator.step.prediction import predict

HOST_TIMES = 2.5
"""Launches of a layer, forward and backward, as `simulator.step` counts them, relative to forward alone."""
COMPUTE_BOUND = 1.5
"""A layer that takes this many times as long as the smallest does not wait for its kernel launches."""
LAYER_TIMES = ("layer_s", "attention_s", "head_s")
"""Keys of a measured layer that are times."""
COMPILED = {"passes_compiled": "passes_torch", "host_compiled_us": "host_torch_us"}
"""Rates of compiled models, which profiles do not measure: scaled by how the plain rate differs from the fitted one."""
COPY_SHARE = 0.9
"""Share of a copy's bandwidth that other memory-bound kernels of a GPU reach; measured on one H200."""
INFINITE = 1e9
"""Rate of work that no measurement shows: it takes no time."""


@dataclass(frozen=True)
class RatedSystem:
    """Machines, and the rates to predict with on them."""

    system: System
    rates: Rates


def rate_system(machine: dict[str, Any], world: dict[str, Any]) -> RatedSystem:
    """Return a measured number of nodes and ranks as machines with fitted rates."""
    threads = threads_per_core(machine, world)
    if threads > 1:
        # A rank that is late leaves its core to the others, so that nobody waits for the slowest rank.
        world = {**_slow_down(world, threads), "spread": 0.0}
    system = _system(machine, world)
    rates = replace(_initial_rates(world), memory=COPY_SHARE if system.gpu.launches_ahead else 1.0)
    rates = _fit_head(system.gpu, rates, world)
    rates = _fit_attention(system.gpu, rates, world)
    rates = _fit_layers(system.gpu, rates, world)
    rates = _fit_update(system.gpu, rates, world)
    return RatedSystem(system, _scale_compiled(_fit_step(system, rates, world)))


def threads_per_core(machine: dict[str, Any], world: dict[str, Any]) -> float:
    """Return how many threads share a CPU core, including ranks of other nodes that are containers of one machine.

    A GPU belongs to one rank. Profiles of older versions count only the ranks of their own node.
    """
    if machine["device"] != "cpu":
        return 1.0
    return float(world.get("per_core") or max(1.0, world["per_node"] * machine["threads"] / machine["cores"]))


def _slow_down(world: dict[str, Any], times: float) -> dict[str, Any]:
    """Return the measurements with compute this many times slower.

    Compute was measured on a dedicated core; collectives and the trainer's runs were measured with all ranks.
    """
    return {
        **world,
        "products": {
            dtype: [(*shape, times * took) for *shape, took in rows] for dtype, rows in world["products"].items()
        },
        "copied_gb_s": world["copied_gb_s"] / times,
        "layers": [{**layer, **{key: times * layer[key] for key in LAYER_TIMES}} for layer in world["layers"]],
        "updates": [{**update, "seconds": times * update["seconds"]} for update in world["updates"]],
    }


def _system(machine: dict[str, Any], world: dict[str, Any]) -> System:
    products = {dtype: [tuple(row) for row in rows] for dtype, rows in world["products"].items()}
    on_gpu = machine["device"] != "cpu"
    peaks = {
        dtype: max(2e-12 * rows * columns * inner / seconds for rows, columns, inner, seconds in points)
        for dtype, points in products.items()
    }
    gpu = Gpu(
        name=machine["device"],
        peak_tflops={"tf32": peaks["fp32"], "bf16": peaks["fp32"], "fp16": peaks["fp32"], **peaks},
        memory_gb=machine["memory_gb"] / (1 if on_gpu else world["per_node"]),
        memory_gb_s=world["copied_gb_s"],
        multiprocessors=machine["multiprocessors"],
        watts=INFINITE,
        reached=1.0,
        products=ProductCurve(products),
        launches_ahead=on_gpu,
    )
    return System(
        name=f"{machine['device']} as measured",
        gpu=gpu,
        gpus_per_node=world["per_node"],
        nodes=world["nodes"],
        intra_gb_s=_bus_gb_s(world, inside=True),
        inter_gb_s=_bus_gb_s(world, inside=False),
        exchanges=ExchangeCurve.from_rows(world["collectives"]),
    )


def _bus_gb_s(world: dict[str, Any], inside: bool) -> float:
    """Return the best measured bandwidth; predictions use the whole curve instead."""
    rows = [row for row in world["collectives"] if (row["per_node"] >= row["ranks"]) == inside]
    return max((1e-9 * row["size"] / row["seconds"] for row in rows), default=0.0)


def _initial_rates(world: dict[str, Any]) -> Rates:
    """Return the published rates with neutral values for everything that the profile measures."""
    ranks = world["nodes"] * world["per_node"]
    spread = world.get("spread", 0.0) / sqrt(2 * log(ranks)) if ranks > 1 else 0.0
    neutral = {"matmul": 1.0, "throttle": 0.0, "memory": 1.0, "links": 1.0, "step_ms": 0.0, "jitter": spread}
    neutral |= {
        "flash": 1.0,
        "flash_hopper": 1.0,
        "passes_gated": 1.0,
        "host_torch_us": 0.0,
        "update": 1.0,
        "logits": 1.0,
    }
    neutral["slowed"] = world.get("slowed") or 0.0
    return replace(load_fitted_rates(), **neutral)


def _fit_head(gpu: Gpu, rates: Rates, world: dict[str, Any]) -> Rates:
    """Fit the memory-bound passes over the logits.

    On a CPU these passes are simple: they show what share of a copy's bandwidth memory-bound work reaches. On a GPU
    the library makes more passes than the model counts, each at the usual speed.
    """
    rows, targets = [], []
    for layer in world["layers"]:
        whole = _seconds(ComputeTimes(_model(layer), gpu, rates).head(_layout(layer, world)))
        product = _seconds(
            ComputeTimes(_model(layer), gpu, replace(rates, memory=INFINITE)).head(_layout(layer, world))
        )
        rows.append([whole - product, 1.0])
        targets.append(max(layer["head_s"] - product, 0.1 * layer["head_s"]))
    times, _ = solve_quiet(rows, targets)
    if gpu.launches_ahead:
        return replace(rates, logits=times)
    return replace(rates, memory=1 / times if times else INFINITE)


def _fit_attention(gpu: Gpu, rates: Rates, world: dict[str, Any]) -> Rates:
    layers = world["layers"]
    works = [ComputeTimes(_model(layer), gpu, rates).layer(_layout(layer, world), mixture=False) for layer in layers]
    rows = [[_seconds(work.attention), 1.0] for work in works]
    times, _ = solve_quiet(rows, [layer["attention_s"] for layer in layers])
    share = 1 / times if times else INFINITE
    return replace(rates, flash=share, flash_hopper=share)


def _fit_layers(gpu: Gpu, rates: Rates, world: dict[str, Any]) -> Rates:
    least = min(layer["layer_s"] for layer in world["layers"])
    large = [layer for layer in world["layers"] if not gpu.launches_ahead or layer["layer_s"] > COMPUTE_BOUND * least]
    rows, targets = [], []
    for layer in large or world["layers"]:
        work = ComputeTimes(_model(layer), gpu, rates).layer(_layout(layer, world), mixture=False)
        rows.append([_seconds(work.elementwise), 0.0 if gpu.launches_ahead else 1.0])
        explained = _seconds(work.products) + _seconds(work.attention)
        targets.append(max(layer["layer_s"] - explained, 0.1 * layer["layer_s"]))
    passes, host = solve_quiet(rows, targets)
    host = least if gpu.launches_ahead else host
    # Only layers of Llama were measured; published runs say how layers of other models compare.
    others = (
        passes * load_fitted_rates().passes_torch / load_fitted_rates().passes_gated if gpu.launches_ahead else passes
    )
    return replace(rates, passes_gated=passes, passes_torch=others, host_torch_us=1e6 * host / HOST_TIMES)


def _fit_update(gpu: Gpu, rates: Rates, world: dict[str, Any]) -> Rates:
    model = _model(world["layers"][0])
    compute = ComputeTimes(model, gpu, rates)
    rows = [[compute.update(update["parameters"], Layout()), 1.0] for update in world["updates"]]
    times, _ = solve_quiet(rows, [update["seconds"] for update in world["updates"]])
    return replace(rates, update=times)


def _fit_step(system: System, rates: Rates, world: dict[str, Any]) -> Rates:
    """Fit the overhead per layer and per step: what the smallest runs take beyond the sum of their parts.

    A layer in training has its gradients hooked, clipped and updated, unlike a layer that is measured alone.
    """
    shallow, deep = world["short_run"], world.get("deep_run")
    if deep is not None:
        more_layers = deep["model"]["layers"] - shallow["model"]["layers"]
        per_layer = (
            _unexplained(system, rates, world, deep) - _unexplained(system, rates, world, shallow)
        ) / more_layers
        host_us = max(0.0, rates.host_torch_us + 1e6 * min(0.0, per_layer) / HOST_TIMES)
        rates = replace(rates, host_torch_us=host_us, step_layer_us=1e6 * max(0.0, per_layer))
    return replace(rates, step_ms=1e3 * max(0.0, _unexplained(system, rates, world, shallow)))


def _unexplained(system: System, rates: Rates, world: dict[str, Any], run: dict[str, Any]) -> float:
    """Return the seconds of a step of `run` that its parts do not explain, without the wait for the slowest rank."""
    ranks, size = world["nodes"] * world["per_node"], run["model"]
    model = Transformer(
        layers=size["layers"],
        hidden=size["dim"],
        heads=size["heads"],
        kv_heads=size["kv_heads"],
        ffn=size["ffn"],
        gated=True,
        vocab=size["vocab_size"],
        seq=size["seq_len"],
    )
    samples = run["samples"]
    layout = Layout(dp=ranks, micro_batch=samples, global_batch=ranks * samples, dtype=world["precision"])
    wait_factor = 1 + (world.get("spread", 0.0) if ranks > 1 else 0.0)
    return float(run["step_s"] - predict(model, layout, system, rates).step_s) / wait_factor


def _scale_compiled(rates: Rates) -> Rates:
    published = load_fitted_rates()
    ratios = {name: getattr(rates, plain) / getattr(published, plain) for name, plain in COMPILED.items()}
    return replace(rates, **{name: getattr(published, name) * ratio for name, ratio in ratios.items()})


def _model(layer: dict[str, Any]) -> Transformer:
    return Transformer(
        layers=1,
        hidden=layer["dim"],
        heads=layer["heads"],
        kv_heads=layer["heads"],
        ffn=layer["ffn"],
        gated=True,
        vocab=layer["vocab"],
        seq=layer["seq"],
    )


def _layout(layer: dict[str, Any], world: dict[str, Any]) -> Layout:
    return Layout(micro_batch=layer["samples"], global_batch=layer["samples"], dtype=world["precision"])


def _seconds(work: Any) -> float:
    return float(work.forward + work.backward)
