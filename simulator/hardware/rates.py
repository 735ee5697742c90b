"""Every constant that was fitted to measured runs, each with what it means."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

DATA = Path(__file__).parents[1] / "data" / "rates.yaml"


def fitted_rate(meaning: str, start: float, low: float, high: float) -> Any:
    """`start` is what is believed before any run is seen; low and high are what physics allows."""
    return field(default=start, metadata={"meaning": meaning, "low": low, "high": high})


@dataclass(frozen=True, kw_only=True)
class Rates:
    matmul: float = fitted_rate(
        "share of a GPU's best matmul rate that training keeps up, hot and beside other work", 0.93, 0.6, 1.0
    )
    throttle: float = fitted_rate("share of the rate lost per dense TFLOP/s per watt beyond an A100's", 0.2, 0.0, 0.5)
    ragged: float = fitted_rate(
        "products with a side that 128 does not divide, share of the speed of others", 0.88, 0.6, 1.0
    )
    tile_us: float = fitted_rate("time of one wave of tiles beside its arithmetic", 2.0, 0.2, 8.0)
    flash: float = fitted_rate("flash attention, share of the best matmul rate before Hopper", 0.65, 0.3, 0.9)
    flash_early: float = fitted_rate("the same with the kernels of before FlashAttention 2", 0.4, 0.2, 0.6)
    flash_hopper: float = fitted_rate("the same since Hopper with the kernels of torch", 0.42, 0.2, 0.8)
    flash_fused: float = fitted_rate(
        "the same since Hopper with the kernels of megatron and TransformerEngine", 0.65, 0.3, 0.9
    )
    memory: float = fitted_rate(
        "share of the memory bandwidth that norms, activations and updates reach", 0.8, 0.5, 0.95
    )
    passes_torch: float = fitted_rate(
        "reads and writes beside products, over a count of perfect ones: plain modules", 1.5, 0.8, 4.0
    )
    passes_gated: float = fitted_rate(
        "the same with norms, rotations and gates of several kernels each, as in Llama", 2.2, 0.8, 5.0
    )
    passes_compiled: float = fitted_rate("the same where the model is compiled", 0.9, 0.5, 2.5)
    passes_megatron: float = fitted_rate("the same with fused kernels", 1.4, 0.6, 3.0)
    logits: float = fitted_rate("reads and writes of the loss over a count of them", 1.0, 0.5, 3.0)
    permute: float = fitted_rate("reads and writes of a token's copy on its way to an expert and back", 9.0, 4.0, 16.0)
    kernel_us: float = fitted_rate("least time of a small kernel", 3.0, 1.0, 8.0)
    host_torch_us: float = fitted_rate("host time to launch one layer forward: plain modules", 400.0, 100.0, 1500.0)
    host_compiled_us: float = fitted_rate("the same, compiled", 150.0, 50.0, 800.0)
    host_megatron_us: float = fitted_rate("the same, megatron and deepspeed", 750.0, 100.0, 2500.0)
    host_again_us: float = fitted_rate(
        "host time around a layer that is recomputed: random states, detached inputs", 500.0, 0.0, 2000.0
    )
    host_shard_us: float = fitted_rate("host time to gather one sharded layer", 300.0, 50.0, 1500.0)
    host_tensor_us: float = fitted_rate("host time that splitting a layer over ranks adds to it", 60.0, 0.0, 600.0)
    gather_shown: float = fitted_rate("share of a layer's compute that deepspeed does not gather behind", 0.8, 0.0, 1.0)
    host_experts_us: float = fitted_rate("host time that a mixture of experts adds to a layer", 800.0, 0.0, 4000.0)
    step_ms: float = fitted_rate("of one step, whatever its size: loss, clipping, data", 5.0, 1.0, 60.0)
    step_megatron_ms: float = fitted_rate("the same, megatron and deepspeed", 12.0, 1.0, 60.0)
    step_layer_us: float = 0.0
    """Of one step for each layer: gradients hooked, clipped, updated. Only profiles tell it from `step_ms`."""
    update: float = fitted_rate("reads and writes of the update over those of a fused one", 1.5, 1.0, 4.0)
    slowed: float = fitted_rate("compute slowed while collectives run beside it", 0.10, 0.0, 0.4)
    gradients_hidden: float = fitted_rate(
        "share of the reduction of gradients that megatron and deepspeed hide", 0.4, 0.0, 1.0
    )
    gradients_overlapped: float = fitted_rate(
        "the same where their recipes overlap it with all of backward", 0.85, 0.0, 1.0
    )
    tensor_hidden: float = fitted_rate(
        "share of exchanges of tensor ranks that overlap hides behind products", 0.6, 0.0, 1.0
    )
    ring: float = fitted_rate(
        "attention of ranks that pass keys on, time over that of one rank with as much of it", 1.3, 1.0, 2.0
    )
    handover_ms: float = fitted_rate(
        "wait of a micro-batch where one stage hands it to the next, whatever its size", 1.0, 0.0, 4.0
    )
    relayed: float = fitted_rate("what deepspeed's pipeline adds to each micro-batch, share of it", 0.05, 0.0, 0.3)
    jitter: float = fitted_rate("standard deviation of a rank's step", 0.006, 0.0, 0.03)
    imbalance: float = fitted_rate("fullest expert over the mean", 1.15, 1.0, 2.0)
    fp8: float = fitted_rate(
        "share of the fp8 rate that fp8 products keep, over that of bf16, casts aside", 1.15, 0.5, 1.4
    )
    links: float = fitted_rate("collectives of a training step, time over that of an idle machine", 1.2, 0.8, 2.5)
    dispatch: float = fitted_rate("tokens on their way to experts, time over that of NCCL's all-to-all", 0.8, 0.5, 1.6)


@cache
def load_fitted_rates() -> Rates:
    """As fitted to data/runs.csv and new_runs.csv."""
    return Rates(**yaml.safe_load(DATA.read_text())["rates"]) if DATA.exists() else Rates()


def rate_bounds(name: str) -> tuple[float, float]:
    metadata = next(one.metadata for one in fields(Rates) if one.name == name)
    return metadata["low"], metadata["high"]
