"""Build profiles as `calibrate` writes them for a machine with known rates, so that tests can check the fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from simulator.hardware.curves import ExchangeCurve, ProductCurve
from simulator.hardware.rates import Rates, load_fitted_rates
from simulator.hardware.system import Gpu, System
from simulator.layout import Layout
from simulator.machines.profile import SCHEMA
from simulator.model import Transformer
from simulator.step.compute import ComputeTimes
from simulator.step.prediction import predict

GFLOPS, COPY_GB_S, CORES = 50.0, 10.0, 8
FASTER, GPU_COPIES = 14_000, 400
"""Factors from the synthetic CPU's rates to those of a GPU: 700 TFLOP/s, 4 TB/s."""
TRUE = {"matmul": 1.0, "throttle": 0.0, "links": 1.0, "jitter": 0.0, "memory": 0.5, "flash": 0.3, "flash_hopper": 0.3}
TRUE |= {"passes_torch": 2.0, "host_torch_us": 40.0, "update": 1.5, "step_ms": 4.0, "slowed": 0.2}
SHAPES = [(m, n, k) for m in (32, 128, 512) for n in (64, 256, 1024) for k in (64, 256)]
LAYERS = [(2, 64, 64, 4, 160, 256), (8, 64, 128, 4, 384, 1024), (4, 128, 256, 8, 688, 512), (2, 256, 128, 4, 384, 2048)]
SHORT = {"layers": 1, "dim": 32, "heads": 2, "kv_heads": 2, "ffn": 64, "vocab_size": 64, "seq_len": 16}
DEEP = {**SHORT, "layers": 5}
MACHINE = {"device": "cpu", "memory_gb": 16.0, "multiprocessors": 1, "cpu": "synthetic", "cores": CORES, "threads": 1}


def rates() -> Rates:
    return replace(load_fitted_rates(), **TRUE)


def system(ranks: int) -> System:
    rows = [(*shape, product_s(*shape)) for shape in SHAPES]
    peak = GFLOPS / 1000
    gpu = Gpu(
        name="cpu",
        peak_tflops=dict.fromkeys(("fp32", "tf32", "bf16", "fp16"), peak),
        memory_gb=16.0 / ranks,
        memory_gb_s=COPY_GB_S,
        multiprocessors=1,
        watts=1e9,
        reached=1.0,
        products=ProductCurve({"fp32": rows}),
        launches_ahead=False,
    )
    curve = ExchangeCurve.from_rows(collectives(ranks))
    return System(
        name="synthetic", gpu=gpu, gpus_per_node=ranks, nodes=1, intra_gb_s=1.0, inter_gb_s=0.0, exchanges=curve
    )


def product_s(rows: int, columns: int, inner: int) -> float:
    return 2 * rows * columns * inner / (GFLOPS * 1e9)


def collectives(ranks: int) -> list[dict[str, Any]]:
    if ranks == 1:
        return []
    sizes = (2**10, 2**14, 2**18, 2**22, 2**24)
    return [
        {"op": op, "ranks": ranks, "per_node": ranks, "size": size, "seconds": 1e-4 * ranks + share * size / 1e9}
        for op, share in (("all_reduce", 2.0), ("all_gather", 1.0))
        for size in sizes
    ]


def world(ranks: int) -> dict[str, Any]:
    """Return the measurements of ranks that each have their own core."""
    return {
        "nodes": 1,
        "per_node": ranks,
        "products": {"fp32": [[*shape, product_s(*shape)] for shape in SHAPES]},
        "copied_gb_s": COPY_GB_S,
        "launch_us": 2.0,
        "precision": "fp32",
        "layers": [layer(ranks, *sizes) for sizes in LAYERS],
        "updates": [update(ranks, parameters) for parameters in (10_000, 200_000, 1_000_000)],
        "collectives": collectives(ranks),
        "slowed": TRUE["slowed"] if ranks > 1 else None,
        "spread": 0.0,
        "checkpoint": {"wait_gb_s": 2.0, "write_gb_s": 0.5, "read_gb_s": 1.0},
        "short_run": short_run(ranks, SHORT),
        "deep_run": short_run(ranks, DEEP),
    }


def layer(ranks: int, samples: int, seq: int, dim: int, heads: int, ffn: int, vocab: int) -> dict[str, Any]:
    model = transformer(1, dim, heads, ffn, vocab, seq)
    compute = ComputeTimes(model, system(ranks).gpu, rates())
    layout = Layout(micro_batch=samples, global_batch=samples, dtype="fp32")
    work, head = compute.layer(layout, mixture=False), compute.head(layout)
    attention = work.attention.forward + work.attention.backward
    host = 2.5e-6 * TRUE["host_torch_us"]
    sizes = {"samples": samples, "seq": seq, "dim": dim, "heads": heads, "ffn": ffn, "vocab": vocab}
    times = {"layer_s": work.forward + work.backward + host, "attention_s": attention}
    return {**sizes, **times, "head_s": head.forward + head.backward}


def update(ranks: int, parameters: int) -> dict[str, Any]:
    model = transformer(1, 64, 4, 160, 256, 64)
    seconds = ComputeTimes(model, system(ranks).gpu, rates()).update(parameters, Layout())
    return {"tensors": 1, "parameters": parameters, "seconds": seconds}


def short_run(ranks: int, size: dict[str, int], **changes: float) -> dict[str, Any]:
    names = ("layers", "dim", "heads", "ffn", "vocab_size", "seq_len")
    layout = Layout(dp=ranks, micro_batch=1, global_batch=ranks, dtype="fp32")
    step = predict(transformer(*(size[name] for name in names)), layout, system(ranks), replace(rates(), **changes))
    return {"model": size, "samples": 1, "steps": 40, "step_s": step.step_s, "data_s": 1e-4, "other_s": 3e-4}


def transformer(layers: int, dim: int, heads: int, ffn: int, vocab: int, seq: int) -> Transformer:
    return Transformer(
        layers=layers, hidden=dim, heads=heads, kv_heads=heads, ffn=ffn, gated=True, vocab=vocab, seq=seq
    )


def profile(ranks: tuple[int, ...] = (1, 2, 4), **machine: Any) -> dict[str, Any]:
    worlds = [world(count) for count in ranks]
    return {"schema": SCHEMA, "stack": "", "machine": {**MACHINE, **machine}, "worlds": worlds}


def profile_without_deep_run(ranks: tuple[int, ...], **machine: Any) -> dict[str, Any]:
    """Return a profile without the deep run, which older versions of `calibrate` did not measure."""
    tree = profile(ranks, **machine)
    for world in tree["worlds"]:
        del world["deep_run"]
    return tree


def gpu_profile(ranks: tuple[int, ...] = (8,), device: str = "NVIDIA H200", memory_gb: float = 139.8) -> dict[str, Any]:
    """Return the same profile with the rates of a GPU."""
    tree = profile(ranks, device=device, memory_gb=memory_gb, multiprocessors=132)
    for world in tree["worlds"]:
        world["products"] = {
            dtype: [[*shape, seconds / FASTER] for *shape, seconds in rows] for dtype, rows in world["products"].items()
        }
        world["copied_gb_s"] *= GPU_COPIES
        for row in world["layers"]:
            row |= {part: row[part] / FASTER for part in ("layer_s", "attention_s", "head_s")}
        for row in world["updates"]:
            row["seconds"] /= GPU_COPIES
        for name in ("short_run", "deep_run"):
            world[name]["step_s"] /= 2
    return tree


def write(file: Path, content: dict[str, Any]) -> Path:
    file.write_text(json.dumps(content))
    return file
