"""Which strategy and micro-batch a run takes, and why: the least sharding and recomputing that fits. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from trainer.auto.memory import RESERVE, Need, Sizes, need
from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.layout import Layout, resolve_layout
from trainer.config.schema import Config, ParallelConfig

GIB = 2**30
RECOMPUTE: tuple[Literal["none", "selective", "full"], ...] = ("none", "selective", "full")
ENOUGH_MICRO = 64
"""Beyond this many samples in one forward a device is busy anyway."""


@dataclass(frozen=True)
class Choice:
    parallel: ParallelConfig
    micro: int
    need: Need
    why: tuple[str, ...]


def choose(config: Config, sizes: Sizes, free: int, world_size: int, local_size: int) -> Choice:
    """`free` is the least free memory of all ranks, in bytes: with equal arguments every rank comes to the same."""
    usable = int(free * (1 - RESERVE))
    why = [f"{free / GIB:.1f} GiB free on the fullest rank, {RESERVE:.0%} of it left alone"]
    for parallel in candidates(config.parallel, world_size, local_size):
        layout = resolve_layout(parallel, world_size, local_size)
        micro = largest_micro(config, sizes, parallel, layout, usable)
        if micro:
            needs = need(sizes, parallel, layout, config.precision, micro)
            why.append(f"{named(parallel)}, micro-batch {micro}: {told(needs)} fits")
            return Choice(parallel, micro, needs, tuple(why))
        least = need(sizes, parallel, layout, config.precision, smallest_micro(config))
        why.append(f"{named(parallel)}: {told(least)} does not fit")
    raise ConfigError(
        [
            ConfigProblem(
                "parallel.strategy",
                f"nothing fits {usable / GIB:.1f} GiB per rank on {world_size} ranks: " + "; ".join(why[1:]),
                "take more ranks, a shorter data.seq_len, a smaller model, or set parallel.tensor",
            )
        ]
    )


def certain(config: Config, most: Sizes, free: int, world_size: int, local_size: int) -> Choice | None:
    """The best there is, if it fits even with sizes that are certainly too large; None where one has to measure."""
    parallel = next(candidates(config.parallel, world_size, local_size))
    layout = resolve_layout(parallel, world_size, local_size)
    micro = micro_options(config, layout)[0]
    needs = need(most, parallel, layout, config.precision, micro)
    if needs.total > free * (1 - RESERVE):
        return None
    why = f"{named(parallel)}, micro-batch {micro}: cannot need more than {needs.total / GIB:.2f} GiB"
    return Choice(parallel, micro, needs, (f"{why}, and {free / GIB:.1f} GiB are free on the fullest rank",))


def candidates(asked: ParallelConfig, world_size: int, local_size: int) -> Iterator[ParallelConfig]:
    """From the least communication and recomputing to the most; what the config fixes stays fixed."""
    for strategy in strategies(asked, world_size, local_size):
        for recompute in RECOMPUTE[RECOMPUTE.index(asked.recompute) :]:
            yield replace(strategy, recompute=recompute)


def strategies(asked: ParallelConfig, world_size: int, local_size: int) -> list[ParallelConfig]:
    if asked.strategy != "auto":
        return [asked]
    rest = world_size // (asked.tensor * asked.pipeline)
    whole = replace(asked, shard=0)
    inside = asked.shard or local_size // asked.tensor
    sharded = [replace(whole, strategy="fsdp", zero=2), replace(whole, strategy="fsdp", zero=3)]
    if 1 < inside < rest and rest % inside == 0:
        sharded.insert(1, replace(asked, strategy="hsdp", zero=3, shard=inside))
    if asked.offload:
        return sharded  # the others cannot
    return [replace(whole, strategy="single")] if rest == 1 else [replace(whole, strategy="ddp"), *sharded]


def largest_micro(config: Config, sizes: Sizes, parallel: ParallelConfig, layout: Layout, usable: int) -> int:
    """0 where not even the smallest fits."""
    for micro in micro_options(config, layout):
        if need(sizes, parallel, layout, config.precision, micro).total <= usable:
            return micro
    return 0


def micro_options(config: Config, layout: Layout) -> list[int]:
    """From the largest on; a pipeline is only busy with at least as many micro-batches as stages."""
    if config.batch.micro != "auto":
        return [config.batch.micro]
    share = config.batch.size // layout.dp_size
    most = min(share // layout.pipeline, ENOUGH_MICRO)
    return [micro for micro in range(most, 0, -1) if share % micro == 0]


def smallest_micro(config: Config) -> int:
    return 1 if config.batch.micro == "auto" else config.batch.micro


def named(parallel: ParallelConfig) -> str:
    words: list[str] = [parallel.strategy]
    if parallel.strategy in ("fsdp", "hsdp"):
        words.append(f"zero {parallel.zero}")
    words += [
        f"{axis} {size}" for axis, size in (("tensor", parallel.tensor), ("pipeline", parallel.pipeline)) if size > 1
    ]
    if parallel.recompute != "none":
        words.append(f"recompute {parallel.recompute}")
    return " ".join(words)


def told(needs: Need) -> str:
    parts = {
        "weights": needs.weights,
        "gradients": needs.gradients,
        "optimizer": needs.states,
        "gathered": needs.gathered,
        "activations": needs.activations,
    }
    inside = ", ".join(f"{name} {size / GIB:.2f}" for name, size in parts.items() if size)
    return f"{needs.total / GIB:.2f} GiB ({inside})"
