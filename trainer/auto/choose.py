"""Choose strategy and micro-batch of a run: the least sharding and recomputation that fits into memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from trainer.auto.memory import RESERVED_FRACTION, MemoryNeed, estimate_memory
from trainer.auto.sizes import ModelSizes
from trainer.config.check_formats import supports_ddp
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.layout import Layout, resolve_layout
from trainer.config.schema import Config, ParallelConfig

GIB = 2**30
RECOMPUTE_MODES: tuple[Literal["none", "selective", "full"], ...] = ("none", "selective", "full")
LARGEST_MICRO = 64
"""Largest micro-batch to choose, in samples: larger forward passes do not use a device any better."""


@dataclass(frozen=True)
class Choice:
    """The chosen settings, the memory they need, and the reasons, line by line."""

    parallel: ParallelConfig
    micro: int
    need: MemoryNeed
    why: tuple[str, ...]


def choose(config: Config, sizes: ModelSizes, free: int, world_size: int, local_size: int) -> Choice:
    """Return the first candidate that fits, or raise a ConfigError that lists what each of them needs.

    `free` is the free memory of the fullest rank, in bytes. Given equal arguments, every rank makes the same choice.
    """
    usable = int(free * (1 - RESERVED_FRACTION))
    why = [f"{free / GIB:.1f} GiB free on the fullest rank, {RESERVED_FRACTION:.0%} of it reserved"]
    for parallel in list_candidates(config, world_size, local_size):
        layout = resolve_layout(parallel, world_size, local_size)
        micro = _find_largest_micro(config, sizes, parallel, layout, usable)
        if micro:
            need = _estimate(config, sizes, parallel, layout, micro)
            why.append(f"{_describe_parallel(parallel)}, micro-batch {micro}: {_describe_need(need)} fits")
            return Choice(parallel, micro, need, tuple(why))
        smallest = 1 if config.batch.micro == "auto" else config.batch.micro
        need = _estimate(config, sizes, parallel, layout, smallest)
        why.append(f"{_describe_parallel(parallel)}: {_describe_need(need)} does not fit")
    raise ConfigError(
        [
            ConfigProblem(
                "parallel.strategy",
                f"nothing fits into {usable / GIB:.1f} GiB per rank on {world_size} ranks: " + "; ".join(why[1:]),
                "use more ranks, a shorter data.seq_len, a smaller model, or set parallel.tensor or parallel.context",
            )
        ]
    )


def choose_without_measuring(
    config: Config, bound: ModelSizes, free: int, world_size: int, local_size: int
) -> Choice | None:
    """Return the best candidate if it fits even with an upper bound of the sizes; None if they must be measured."""
    parallel = next(list_candidates(config, world_size, local_size))
    layout = resolve_layout(parallel, world_size, local_size)
    micro = list_micro_sizes(config, layout)[0]
    need = _estimate(config, bound, parallel, layout, micro)
    if need.total > free * (1 - RESERVED_FRACTION):
        return None
    why = f"{_describe_parallel(parallel)}, micro-batch {micro}: needs at most {need.total / GIB:.2f} GiB"
    return Choice(parallel, micro, need, (f"{why}, and {free / GIB:.1f} GiB are free on the fullest rank",))


def list_candidates(config: Config, world_size: int, local_size: int) -> Iterator[ParallelConfig]:
    """Yield the settings to try, from the least communication and recomputation to the most.

    Settings that the configuration fixes are not changed.
    """
    for strategy in _list_strategies(config, world_size, local_size):
        for recompute in RECOMPUTE_MODES[RECOMPUTE_MODES.index(config.parallel.recompute) :]:
            yield replace(strategy, recompute=recompute)


def list_micro_sizes(config: Config, layout: Layout) -> list[int]:
    """Return the possible micro-batch sizes, largest first.

    A pipeline needs at least as many micro-batches as it has ranks; with fewer, some ranks are always idle.
    """
    if config.batch.micro != "auto":
        return [config.batch.micro]
    per_rank = config.batch.size // layout.dp_size
    largest = min(per_rank // layout.pipeline, LARGEST_MICRO)
    return [micro for micro in range(largest, 0, -1) if per_rank % micro == 0]


def _list_strategies(config: Config, world_size: int, local_size: int) -> list[ParallelConfig]:
    parallel = config.parallel
    if parallel.strategy != "auto":
        return [parallel]
    data_ranks = world_size // (parallel.tensor * parallel.pipeline)
    unsharded = replace(parallel, shard=0)
    ranks_per_copy = parallel.shard or local_size // parallel.tensor // parallel.context * parallel.context
    sharded = [replace(unsharded, strategy="fsdp", zero=2), replace(unsharded, strategy="fsdp", zero=3)]
    if 1 < ranks_per_copy < data_ranks and data_ranks % ranks_per_copy == 0:
        sharded.insert(1, replace(parallel, strategy="hsdp", zero=3, shard=ranks_per_copy))
    if parallel.offload:
        return sharded  # single and ddp do not support offload
    if data_ranks == 1:
        # muster has no engine for a single rank of its own.
        return [replace(unsharded, strategy="ddp" if parallel.engine == "muster" else "single")]
    return [replace(unsharded, strategy="ddp"), *sharded] if supports_ddp(config) else sharded


def _find_largest_micro(
    config: Config, sizes: ModelSizes, parallel: ParallelConfig, layout: Layout, usable: int
) -> int:
    """Return the largest micro-batch that fits into `usable` bytes, or 0 if none does."""
    for micro in list_micro_sizes(config, layout):
        if _estimate(config, sizes, parallel, layout, micro).total <= usable:
            return micro
    return 0


def _estimate(config: Config, sizes: ModelSizes, parallel: ParallelConfig, layout: Layout, micro: int) -> MemoryNeed:
    micro_batches = max(1, config.batch.size // (layout.dp_size * micro))
    formats = (config.precision, micro, micro_batches, config.optimizer, config.communication)
    return estimate_memory(sizes, parallel, layout, *formats, compiles=config.compile.mode != "none")


def _describe_parallel(parallel: ParallelConfig) -> str:
    parts: list[str] = [parallel.strategy]
    if parallel.strategy in ("fsdp", "hsdp"):
        parts.append(f"zero {parallel.zero}")
    parts += [
        f"{axis} {getattr(parallel, axis)}"
        for axis in ("tensor", "context", "expert", "pipeline")
        if getattr(parallel, axis) > 1
    ]
    if parallel.recompute != "none":
        parts.append(f"recompute {parallel.recompute}")
    return " ".join(parts)


def _describe_need(need: MemoryNeed) -> str:
    purposes = {
        "weights": need.weights,
        "gradients": need.gradients,
        "optimizer": need.states,
        "gathered": need.gathered,
        "activations": need.activations,
        "residuals": need.residuals,
    }
    details = ", ".join(f"{name} {size / GIB:.2f}" for name, size in purposes.items() if size)
    return f"{need.total / GIB:.2f} GiB ({details})"
