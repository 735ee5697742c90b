"""The trainer's own arrangement of its ranks, in the simulator's words."""

from __future__ import annotations

from simulator.layout import Layout
from trainer.config.layout import resolve_layout
from trainer.config.schema import Config


def layout(config: Config, ranks: int, per_node: int, micro: int) -> Layout:
    """ConfigError where so many ranks cannot be arranged as the settings ask."""
    asked = config.parallel
    axes = resolve_layout(asked, ranks, per_node)
    sharded = asked.strategy in ("fsdp", "hsdp")
    return Layout(
        dp=axes.dp_size,
        tp=axes.tensor,
        pp=axes.pipeline,
        virtual_stages=asked.virtual_stages if axes.pipeline > 1 and asked.schedule == "interleaved" else 1,
        schedule=asked.schedule,
        micro_batch=micro,
        global_batch=config.batch.size,
        zero=asked.zero if sharded else 0,
        shard=axes.shard if asked.strategy == "hsdp" else 0,
        sequence_parallel=axes.tensor > 1,
        recompute=asked.recompute,
        dtype=config.precision,
        offload=asked.offload,
        compiled=config.compile.mode != "none",
        prefetch=asked.prefetch,
        bucket_mb=asked.bucket_mb,
    )
