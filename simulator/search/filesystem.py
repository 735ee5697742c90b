"""How fast a stack's shared filesystem takes a checkpoint, and which one would be fast enough."""

from __future__ import annotations

from math import ceil

from cluster.catalog import lustre
from cluster.catalog.prices import service_price
from cluster.spec import ClusterSpec, Storage
from trainer.config.errors import ConfigError, ConfigProblem

SHARED = "/shared"
GIB_PER_TIB = 1024
MB_PER_GB = 1000
MOST_GB = 1_000_000
"""As `cluster.spec` has it for any filesystem."""
# EFS takes 1 to 5 GB/s from many clients, depending on the region (unverified; docs.aws.amazon.com/efs/latest/ug/
# performance.html). Nothing is known of a filesystem that exists already. Both count as slow.
UNKNOWN_GB_S = 1.0
ENOUGH_S = 300.0
"""Writing time of a checkpoint that hardly costs a run anything, up to some thousand GPUs."""


def gb_s(spec: ClusterSpec) -> float:
    """Of the filesystem that runs lie on; Lustre's rate grows with its size."""
    found = _shared(spec)
    return _rate(found[1]) if found else UNKNOWN_GB_S


def advice(spec: ClusterSpec, checkpoint_gb: float) -> str:
    """The size of a Lustre filesystem that takes a checkpoint in time; empty where it is large enough."""
    found = _shared(spec)
    if found is None or checkpoint_gb / _rate(found[1]) <= ENOUGH_S:
        return ""
    name, one = found
    speed = lustre.throughput(one)
    least = checkpoint_gb / ENOUGH_S * MB_PER_GB / speed * GIB_PER_TIB
    size = ceil(least / lustre.STEP_GB) * lustre.STEP_GB
    usd = (size - lustre.size_gb(one)) * service_price(f"fsx-lustre-{speed}").usd_per_hour
    return f"storage.{name}.size_gb: {size} takes it in 5 min, for {usd:,.0f} USD more an hour"


def resized(spec: ClusterSpec, size_gb: int) -> ClusterSpec:
    """The same stack with a shared filesystem of that size; raises ConfigError where it has none that can be sized."""
    found = _shared(spec)
    if found is None:
        message = f"{size_gb}; the stack has no fsx-lustre at {SHARED}, whose rate would grow with its size"
        raise ConfigError([ConfigProblem("shared-gb", message, "leave it out, or name another --stack")])
    name, one = found
    larger = one.model_copy(update={"size_gb": size_gb})
    if not 1 <= size_gb <= MOST_GB:
        message = f"{size_gb}; allowed: 1200, or a multiple of 2400, up to {MOST_GB}"
        raise ConfigError([ConfigProblem("shared-gb", message, "choose one of them")])
    if problems := [message for _, message in lustre.find_problems(larger)]:
        raise ConfigError([ConfigProblem("shared-gb", problems[0], "choose one of them")])
    return spec.model_copy(update={"storage": {**spec.storage, name: larger}})


def edits(before: ClusterSpec, planned: ClusterSpec) -> list[tuple[tuple[str, ...], int]]:
    """What a stack file lacks of a filesystem that was resized."""
    every = planned.storage.items()
    return [(("storage", name, "size_gb"), one.size_gb or 0) for name, one in every if one != before.storage[name]]


def _shared(spec: ClusterSpec) -> tuple[str, Storage] | None:
    every = ((name, one) for name, one in spec.storage.items() if one.mount == SHARED and one.kind == "fsx-lustre")
    return next(every, None)


def _rate(one: Storage) -> float:
    return lustre.size_gb(one) / GIB_PER_TIB * lustre.throughput(one) / MB_PER_GB
