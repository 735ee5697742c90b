"""From what was measured of a machine to the rates that a prediction goes by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log, sqrt
from typing import Any

from simulator.hardware.curves import ExchangeCurve, ProductCurve
from simulator.hardware.rates import Rates, fitted
from simulator.hardware.system import Gpu, System
from simulator.layout import Layout
from simulator.machines.nonnegative import solve_quiet
from simulator.model import Transformer
from simulator.step.compute import Compute
from simulator.step.prediction import predict

HOST_TIMES = 2.5
"""What `step` counts a layer's launches as, forward and backward."""
LARGE = 1.5
"""A layer that takes so many times as long as the smallest does not wait for its launches."""
PARTS = ("layer_s", "attention_s", "head_s")
"""Times of a measured layer."""
COMPILED = {"passes_compiled": "passes_torch", "host_compiled_us": "host_torch_us"}
"""What measurements with plain modules do not show, and what it stands to as it does on other machines."""
OF_COPY = 0.9
"""Share of a copy's rate that a GPU's other simple kernels reach; measured on one H200."""
UNSEEN = 1e9
"""A rate of what no measurement shows: it takes no time."""


@dataclass(frozen=True)
class Calibrated:
    system: System
    rates: Rates


def calibrated(machine: dict[str, Any], world: dict[str, Any]) -> Calibrated:
    times = crowd(machine, world)
    if times > 1:
        # A rank that is late leaves its core to the others: nobody waits for the slowest.
        world = {**_slower(world, times), "spread": 0.0}
    system = _system(machine, world)
    rates = replace(_clean(world), memory=OF_COPY if system.gpu.runs_ahead else 1.0)
    rates = _head(system.gpu, rates, world)
    rates = _attention(system.gpu, rates, world)
    rates = _layers(system.gpu, rates, world)
    rates = _update(system.gpu, rates, world)
    return Calibrated(system, _compiled(_step(system, rates, world)))


def crowd(machine: dict[str, Any], world: dict[str, Any]) -> float:
    """Threads of ranks that share a core, also with ranks of other nodes where those are containers of one machine.

    A GPU belongs to one rank. Older profiles know only their own node's ranks.
    """
    if machine["device"] != "cpu":
        return 1.0
    return float(world.get("per_core") or max(1.0, world["per_node"] * machine["threads"] / machine["cores"]))


def _slower(world: dict[str, Any], times: float) -> dict[str, Any]:
    """Work was measured on a core of its own; exchanges and the trainer's runs had all ranks in them already."""
    return {
        **world,
        "products": {
            dtype: [(*shape, times * took) for *shape, took in rows] for dtype, rows in world["products"].items()
        },
        "copied_gb_s": world["copied_gb_s"] / times,
        "layers": [{**one, **{part: times * one[part] for part in PARTS}} for one in world["layers"]],
        "updates": [{**one, "seconds": times * one["seconds"]} for one in world["updates"]],
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
        watts=UNSEEN,
        reached=1.0,
        products=ProductCurve(products),
        runs_ahead=on_gpu,
    )
    return System(
        name=f"{machine['device']} as measured",
        gpu=gpu,
        gpus_per_node=world["per_node"],
        nodes=world["nodes"],
        intra_gb_s=_bus_gb_s(world, inside=True),
        inter_gb_s=_bus_gb_s(world, inside=False),
        exchanges=ExchangeCurve.of(world["collectives"]),
    )


def _bus_gb_s(world: dict[str, Any], inside: bool) -> float:
    """The best rate seen, for those who ask for one; predictions go by the curve."""
    rows = [row for row in world["collectives"] if (row["per_node"] >= row["ranks"]) == inside]
    return max((1e-9 * row["size"] / row["seconds"] for row in rows), default=0.0)


def _clean(world: dict[str, Any]) -> Rates:
    """Nothing of what was fitted to other machines that is measured here."""
    ranks = world["nodes"] * world["per_node"]
    spread = world.get("spread", 0.0) / sqrt(2 * log(ranks)) if ranks > 1 else 0.0
    seen = {"matmul": 1.0, "throttle": 0.0, "memory": 1.0, "links": 1.0, "step_ms": 0.0, "jitter": spread}
    seen |= {"flash": 1.0, "flash_hopper": 1.0, "passes_gated": 1.0, "host_torch_us": 0.0, "update": 1.0, "logits": 1.0}
    seen["slowed"] = world.get("slowed") or 0.0
    return replace(fitted(), **seen)


def _head(gpu: Gpu, rates: Rates, world: dict[str, Any]) -> Rates:
    """On a processor, passes over the logits are simple: they show what share of a copy's rate such passes reach.

    A GPU's library makes more of them than were counted, each about as fast as any.
    """
    rows, left = [], []
    for one in world["layers"]:
        whole = _seconds(Compute(_model(one), gpu, rates).head(_layout(one, world)))
        product = _seconds(Compute(_model(one), gpu, replace(rates, memory=UNSEEN)).head(_layout(one, world)))
        rows.append([whole - product, 1.0])
        left.append(max(one["head_s"] - product, 0.1 * one["head_s"]))
    times, _ = solve_quiet(rows, left)
    if gpu.runs_ahead:
        return replace(rates, logits=times)
    return replace(rates, memory=1 / times if times else UNSEEN)


def _attention(gpu: Gpu, rates: Rates, world: dict[str, Any]) -> Rates:
    works = [Compute(_model(one), gpu, rates).layer(_layout(one, world), mixture=False) for one in world["layers"]]
    rows = [[_seconds(work.attention), 1.0] for work in works]
    times, _ = solve_quiet(rows, [one["attention_s"] for one in world["layers"]])
    share = 1 / times if times else UNSEEN
    return replace(rates, flash=share, flash_hopper=share)


def _layers(gpu: Gpu, rates: Rates, world: dict[str, Any]) -> Rates:
    least = min(one["layer_s"] for one in world["layers"])
    seen = [one for one in world["layers"] if not gpu.runs_ahead or one["layer_s"] > LARGE * least]
    rows, left = [], []
    for one in seen or world["layers"]:
        work = Compute(_model(one), gpu, rates).layer(_layout(one, world), mixture=False)
        rows.append([_seconds(work.rest), 0.0 if gpu.runs_ahead else 1.0])
        known = _seconds(work.products) + _seconds(work.attention)
        left.append(max(one["layer_s"] - known, 0.1 * one["layer_s"]))
    passes, host = solve_quiet(rows, left)
    host = least if gpu.runs_ahead else host
    # Layers of Llama were measured; how those of others compare is known from elsewhere.
    others = passes * fitted().passes_torch / fitted().passes_gated if gpu.runs_ahead else passes
    return replace(rates, passes_gated=passes, passes_torch=others, host_torch_us=1e6 * host / HOST_TIMES)


def _update(gpu: Gpu, rates: Rates, world: dict[str, Any]) -> Rates:
    model = _model(world["layers"][0])
    compute = Compute(model, gpu, rates)
    rows = [[compute.update(one["parameters"], Layout()), 1.0] for one in world["updates"]]
    times, _ = solve_quiet(rows, [one["seconds"] for one in world["updates"]])
    return replace(rates, update=times)


def _step(system: System, rates: Rates, world: dict[str, Any]) -> Rates:
    """What the smallest runs take beyond what is known of their parts: by the layer, and by the step.

    A layer in training has its gradients hooked, clipped and updated, which one that is measured alone has not.
    """
    shallow, deep = world["short_run"], world.get("deep_run")
    if deep is not None:
        more = deep["model"]["layers"] - shallow["model"]["layers"]
        each = (_unknown(system, rates, world, deep) - _unknown(system, rates, world, shallow)) / more
        quicker = max(0.0, rates.host_torch_us + 1e6 * min(0.0, each) / HOST_TIMES)
        rates = replace(rates, host_torch_us=quicker, step_layer_us=1e6 * max(0.0, each))
    return replace(rates, step_ms=1e3 * max(0.0, _unknown(system, rates, world, shallow)))


def _unknown(system: System, rates: Rates, world: dict[str, Any], run: dict[str, Any]) -> float:
    """Seconds of a step of `run` that its parts do not explain, before the slowest rank is waited for."""
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
    waited = 1 + (world.get("spread", 0.0) if ranks > 1 else 0.0)
    return float(run["step_s"] - predict(model, layout, system, rates).step_s) / waited


def _compiled(rates: Rates) -> Rates:
    usual = fitted()
    ratios = {name: getattr(rates, plain) / getattr(usual, plain) for name, plain in COMPILED.items()}
    return replace(rates, **{name: getattr(usual, name) * ratio for name, ratio in ratios.items()})


def _model(one: dict[str, Any]) -> Transformer:
    return Transformer(
        layers=1,
        hidden=one["dim"],
        heads=one["heads"],
        kv_heads=one["heads"],
        ffn=one["ffn"],
        gated=True,
        vocab=one["vocab"],
        seq=one["seq"],
    )


def _layout(one: dict[str, Any], world: dict[str, Any]) -> Layout:
    return Layout(micro_batch=one["samples"], global_batch=one["samples"], dtype=world["precision"])


def _seconds(both: Any) -> float:
    return float(both.forward + both.backward)
