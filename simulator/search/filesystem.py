"""The write rate of a stack's shared filesystem, and the size that is fast enough for checkpoints."""

from __future__ import annotations

from math import ceil

from cluster.catalog import lustre
from cluster.catalog.prices import service_price
from cluster.spec import ClusterSpec, Storage
from trainer.config.errors import ConfigError, ConfigProblem

SHARED = "/shared"
GIB_PER_TIB = 1024
MB_PER_GB = 1000
MAX_GB = 1_000_000
"""The limit of `cluster.spec` for any filesystem."""
# EFS takes 1 to 5 GB/s from many clients, depending on the region (unverified; docs.aws.amazon.com/efs/latest/ug/
# performance.html). Nothing is known about an existing filesystem. Both count as slow.
UNKNOWN_GB_S = 1.0
MAX_WRITE_S = 300.0
"""Writing time of a checkpoint that hardly slows runs of up to a few thousand GPUs."""


def gb_s(spec: ClusterSpec) -> float:
    """Return the write rate of the shared filesystem; Lustre's rate grows with its size."""
    shared = _shared(spec)
    return _rate(shared[1]) if shared else UNKNOWN_GB_S


def advice(spec: ClusterSpec, checkpoint_gb: float) -> str:
    """Return advice on the size of a Lustre filesystem that is too slow; empty if it is fast enough."""
    shared = _shared(spec)
    if shared is None or checkpoint_gb / _rate(shared[1]) <= MAX_WRITE_S:
        return ""
    name, entry = shared
    speed = lustre.throughput(entry)
    least = checkpoint_gb / MAX_WRITE_S * MB_PER_GB / speed * GIB_PER_TIB
    size = ceil(least / lustre.STEP_GB) * lustre.STEP_GB
    usd = (size - lustre.size_gb(entry)) * service_price(f"fsx-lustre-{speed}").usd_per_hour
    return f"storage.{name}.size_gb: {size} would take it in 5 min, for {usd:,.0f} USD more per hour"


def resized(spec: ClusterSpec, size_gb: int) -> ClusterSpec:
    """Return the spec with a shared filesystem of this size; raise ConfigError if it has none that can be sized."""
    shared = _shared(spec)
    if shared is None:
        message = f"{size_gb}; the stack has no fsx-lustre at {SHARED}, the only kind whose rate grows with its size"
        raise ConfigError([ConfigProblem("shared-gb", message, "leave it out, or name another --stack")])
    name, entry = shared
    larger = entry.model_copy(update={"size_gb": size_gb})
    if not 1 <= size_gb <= MAX_GB:
        message = f"{size_gb}; allowed: 1200, or a multiple of 2400, up to {MAX_GB}"
        raise ConfigError([ConfigProblem("shared-gb", message, "choose one of them")])
    if problems := [message for _, message in lustre.find_problems(larger)]:
        raise ConfigError([ConfigProblem("shared-gb", problems[0], "choose one of them")])
    return spec.model_copy(update={"storage": {**spec.storage, name: larger}})


def edits(before: ClusterSpec, planned: ClusterSpec) -> list[tuple[tuple[str, ...], int]]:
    """Return the edits that give a stack file the planned sizes of filesystems."""
    changed = [(name, entry) for name, entry in planned.storage.items() if entry != before.storage[name]]
    return [(("storage", name, "size_gb"), entry.size_gb or 0) for name, entry in changed]


def _shared(spec: ClusterSpec) -> tuple[str, Storage] | None:
    for name, entry in spec.storage.items():
        if entry.mount == SHARED and entry.kind == "fsx-lustre":
            return name, entry
    return None


def _rate(entry: Storage) -> float:
    return lustre.size_gb(entry) / GIB_PER_TIB * lustre.throughput(entry) / MB_PER_GB
