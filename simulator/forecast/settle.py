"""Settings that were left open become definite: as `make submit` settles them, or by memory as the trainer does."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from simulator.hardware.system import System
from simulator.job import layout_from_config
from simulator.layout import Layout
from simulator.machines.requested import On
from simulator.machines.stack_names import MAX_NODES as MOST_NODES
from simulator.memory.peak import fits_in_memory, predict_memory
from simulator.models import build_model
from simulator.search import settled as searched
from simulator.search.best import LEFT_ALONE, Found
from simulator.search.trainer_config import parallel
from trainer.auto.choose import list_candidates, list_micro_sizes
from trainer.config.errors import ConfigError
from trainer.config.layout import resolve_layout
from trainer.config.schema import Config


@dataclass(frozen=True)
class Settled:
    config: Config
    layout: Layout
    chosen: dict[str, Any]
    """What was open, by the name of the setting."""


def settle(config: Config, on: On) -> Settled:
    """Where nothing fits it is the layout that needs the least of those that are allowed."""
    if _is_searched(config, on):
        found = _searched(config, on)
        return _with(config, parallel(found.layout), found.layout.micro_batch, on)
    least: Settled | None = None
    for asked in list_candidates(config.parallel, on.ranks, on.per_node):
        changed = {name: getattr(asked, name) for name in ("strategy", "recompute", "zero", "shard")}
        for micro in list_micro_sizes(config, resolve_layout(asked, on.ranks, on.per_node)):
            least = _with(config, changed, micro, on)
            if not _is_open(config) or _is_roomy(least, on):
                return least
    if least is None:
        raise AssertionError("a strategy has candidates, and a batch that its ranks divide a micro-batch")
    return least


def _is_searched(config: Config, on: On) -> bool:
    return config.parallel.strategy == "auto" and on.of_catalog and not searched.why_not(config)


def _searched(config: Config, on: On) -> Found:
    machines = replace(on.system, gpus_per_node=on.per_node)
    try:
        return searched.settled(config, machines, on.rates)[1]
    except ConfigError as bad:
        enough = _enough(config, machines)
        if not enough:
            raise
        (one,) = bad.problems
        raise ConfigError([replace(one, fix=f"it does on {enough} nodes (--nodes {enough})")]) from None


def _enough(config: Config, machines: System) -> int:
    """Nodes on which some layout fits, doubled from those that there are; 0 where none does."""
    count = 2 * machines.nodes
    while count <= MOST_NODES:
        with suppress(ConfigError):
            searched.settled(config, replace(machines, nodes=count, exchanges=None))
            return count
        count *= 2
    return 0


def _is_open(config: Config) -> bool:
    return config.parallel.strategy == "auto" or config.batch.micro == "auto"


def _is_roomy(found: Settled, on: On) -> bool:
    needed = predict_memory(build_model(found.config.model, found.config.data.seq_len), found.layout, on.system)
    return needed.total <= (1 - LEFT_ALONE) * needed.capacity and fits_in_memory(needed, on.is_gpu)


def _with(config: Config, changes: dict[str, Any], micro: int, on: On) -> Settled:
    before = config.parallel
    # ZeRO and shards mean nothing to a strategy that splits no state.
    names = changes if changes["strategy"] in ("fsdp", "hsdp") else set(changes) - {"zero", "shard"}
    kept = {name: changes[name] for name in names}
    after = replace(config, parallel=replace(before, **kept), batch=replace(config.batch, micro=micro))
    chosen = {f"parallel.{name}": value for name, value in kept.items() if getattr(before, name) != value}
    if config.batch.micro == "auto":
        chosen["batch.micro"] = micro
    return Settled(after, layout_from_config(after, on.ranks, on.per_node, micro), chosen)
