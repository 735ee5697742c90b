"""The constants that are fitted to measured runs, with their meaning, prior and bounds."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parents[1] / "data" / "rates.yaml"


def fitted_rate(meaning: str, start: float, low: float, high: float) -> Any:
    """Declare a fitted constant: `start` is the prior estimate; `low` and `high` are physical bounds."""
    return field(default=start, metadata={"meaning": meaning, "low": low, "high": high})


@dataclass(frozen=True, kw_only=True)
class Rates:
    """The fitted constants of the step model."""

    matmul: float = fitted_rate("share of a GPU's best matmul rate that training sustains under load", 0.93, 0.6, 1.0)
    throttle: float = fitted_rate("share of the rate lost per dense TFLOP/s per watt beyond an A100's", 0.2, 0.0, 0.5)
    ragged: float = fitted_rate(
        "speed of products with a side not divisible by 128, relative to others", 0.88, 0.6, 1.0
    )
    tile_us: float = fitted_rate("overhead of one wave of tiles", 2.0, 0.2, 8.0)
    flash: float = fitted_rate("flash attention before Hopper, share of the best matmul rate", 0.65, 0.3, 0.9)
    flash_early: float = fitted_rate("the same with kernels older than FlashAttention 2", 0.4, 0.2, 0.6)
    flash_hopper: float = fitted_rate("the same since Hopper with torch's kernels", 0.42, 0.2, 0.8)
    flash_fused: float = fitted_rate(
        "the same since Hopper with Megatron's and TransformerEngine's kernels", 0.65, 0.3, 0.9
    )
    memory: float = fitted_rate("share of the memory bandwidth that memory-bound kernels reach", 0.8, 0.5, 0.95)
    passes_torch: float = fitted_rate(
        "reads and writes outside products, relative to the minimum: unfused modules", 1.5, 0.8, 4.0
    )
    passes_gated: float = fitted_rate(
        "the same with norms, rotations and gates of several kernels each, as in Llama", 2.2, 0.8, 5.0
    )
    passes_compiled: float = fitted_rate("the same with a compiled model", 0.9, 0.5, 2.5)
    passes_megatron: float = fitted_rate("the same with fused kernels", 1.4, 0.6, 3.0)
    logits: float = fitted_rate("reads and writes of the loss, relative to the count", 1.0, 0.5, 3.0)
    permute: float = fitted_rate("reads and writes to permute a token to an expert and back", 9.0, 4.0, 16.0)
    kernel_us: float = fitted_rate("minimum time of a kernel", 3.0, 1.0, 8.0)
    host_torch_us: float = fitted_rate(
        "host time to launch the forward of one layer: unfused modules", 400.0, 100.0, 1500.0
    )
    host_compiled_us: float = fitted_rate("the same, compiled", 150.0, 50.0, 800.0)
    host_megatron_us: float = fitted_rate("the same, Megatron and DeepSpeed", 750.0, 100.0, 2500.0)
    host_again_us: float = fitted_rate(
        "host time to set up the recomputation of a layer: random states, detached inputs", 500.0, 0.0, 2000.0
    )
    host_shard_us: float = fitted_rate("host time to gather one sharded layer", 300.0, 50.0, 1500.0)
    host_tensor_us: float = fitted_rate("host time that tensor parallelism adds to a layer", 60.0, 0.0, 600.0)
    gather_shown: float = fitted_rate(
        "share of a layer's compute that DeepSpeed's gathers do not overlap", 0.8, 0.0, 1.0
    )
    host_experts_us: float = fitted_rate("host time that a mixture of experts adds to a layer", 800.0, 0.0, 4000.0)
    step_ms: float = fitted_rate("fixed time per step: loss, clipping, data", 5.0, 1.0, 60.0)
    step_megatron_ms: float = fitted_rate("the same, Megatron and DeepSpeed", 12.0, 1.0, 60.0)
    step_layer_us: float = 0.0
    """Fixed time per step and layer: hooks, clipping, update. Only profiles separate it from `step_ms`."""
    update: float = fitted_rate("reads and writes of the update, relative to a fused one", 1.5, 1.0, 4.0)
    slowed: float = fitted_rate("slowdown of compute while collectives run", 0.10, 0.0, 0.4)
    gradients_hidden: float = fitted_rate(
        "share of the gradient reduction that Megatron and DeepSpeed overlap", 0.4, 0.0, 1.0
    )
    gradients_overlapped: float = fitted_rate(
        "the same with recipes that overlap it with all of backward", 0.85, 0.0, 1.0
    )
    tensor_hidden: float = fitted_rate("share of tensor-parallel communication that overlaps products", 0.6, 0.0, 1.0)
    ring: float = fitted_rate("ring attention, time relative to one rank with the same work", 1.3, 1.0, 2.0)
    handover_ms: float = fitted_rate("fixed wait of a micro-batch between two stages", 1.0, 0.0, 4.0)
    relayed: float = fitted_rate("overhead of DeepSpeed's pipeline per micro-batch, share of its time", 0.05, 0.0, 0.3)
    jitter: float = fitted_rate("standard deviation of a rank's step time, share of it", 0.006, 0.0, 0.03)
    imbalance: float = fitted_rate("tokens of the fullest expert, relative to the mean", 1.15, 1.0, 2.0)
    fp8: float = fitted_rate(
        "share of the fp8 peak that fp8 products reach, relative to bf16's, without casts", 1.15, 0.5, 1.4
    )
    links: float = fitted_rate("time of collectives in a training step, relative to an idle machine", 1.2, 0.8, 2.5)
    dispatch: float = fitted_rate("time to dispatch tokens to experts, relative to NCCL's all-to-all", 0.8, 0.5, 1.6)


@cache
def load_fitted_rates() -> Rates:
    """Return the constants fitted to data/runs.csv and new_runs.csv."""
    return Rates(**yaml.safe_load(DATA.read_text())["rates"]) if DATA.exists() else Rates()


def rate_bounds(name: str) -> tuple[float, float]:
    """Return the physical bounds of a constant."""
    metadata = next(field.metadata for field in fields(Rates) if field.name == name)
    return metadata["low"], metadata["high"]
