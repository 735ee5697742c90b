"""Resolve settings that were left open: as `make submit` chooses them, or by memory as the trainer does."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from simulator.hardware.system import System
from simulator.job import layout_from_config
from simulator.layout import Layout
from simulator.machines.job_machines import JobMachines
from simulator.machines.stack_names import MAX_NODES
from simulator.memory.peak import fits_in_memory, predict_memory
from simulator.models import build_model
from simulator.search import auto_layout
from simulator.search.fastest import MEMORY_MARGIN, TimedLayout
from simulator.search.trainer_config import parallel_settings
from trainer.auto.choose import list_candidates, list_micro_sizes
from trainer.config.errors import ConfigError
from trainer.config.layout import resolve_layout
from trainer.config.schema import Config


@dataclass(frozen=True)
class ResolvedRun:
    """Settings without `auto`, and the layout that they mean."""

    config: Config
    layout: Layout
    chosen: dict[str, Any]
    """Values of the settings that were open, by name."""


def resolve_settings(config: Config, machines: JobMachines) -> ResolvedRun:
    """Choose the open settings; if nothing fits in memory, the allowed layout that needs the least."""
    if _uses_search(config, machines):
        timed = _search(config, machines)
        return _apply(config, parallel_settings(timed.layout), timed.layout.micro_batch, machines)
    smallest: ResolvedRun | None = None
    for candidate in list_candidates(config, machines.ranks, machines.per_node):
        changes = {name: getattr(candidate, name) for name in ("strategy", "recompute", "zero", "shard")}
        for micro in list_micro_sizes(config, resolve_layout(candidate, machines.ranks, machines.per_node)):
            smallest = _apply(config, changes, micro, machines)
            if not _is_open(config) or _fits_with_margin(smallest, machines):
                return smallest
    if smallest is None:
        raise AssertionError("every strategy has candidates, and every divisible batch has a micro-batch")
    return smallest


def _uses_search(config: Config, machines: JobMachines) -> bool:
    return config.parallel.strategy == "auto" and machines.of_catalog and not auto_layout.skip_reason(config)


def _search(config: Config, machines: JobMachines) -> TimedLayout:
    system = replace(machines.system, gpus_per_node=machines.per_node)
    try:
        return auto_layout.choose_layout(config, system, machines.rates)[1]
    except ConfigError as error:
        nodes = _sufficient_nodes(config, system)
        if not nodes:
            raise
        (problem,) = error.problems
        raise ConfigError([replace(problem, fix=f"it fits on {nodes} nodes (--nodes {nodes})")]) from None


def _sufficient_nodes(config: Config, system: System) -> int:
    """Return a number of nodes on which some layout fits, doubling from the current one; 0 if none does."""
    nodes = 2 * system.nodes
    while nodes <= MAX_NODES:
        with suppress(ConfigError):
            auto_layout.choose_layout(config, replace(system, nodes=nodes, exchanges=None))
            return nodes
        nodes *= 2
    return 0


def _is_open(config: Config) -> bool:
    return config.parallel.strategy == "auto" or config.batch.micro == "auto"


def _fits_with_margin(run: ResolvedRun, machines: JobMachines) -> bool:
    needed = predict_memory(build_model(run.config.model, run.config.data.seq_len), run.layout, machines.system)
    return needed.total <= (1 - MEMORY_MARGIN) * needed.capacity and fits_in_memory(needed, machines.is_gpu)


def _apply(config: Config, changes: dict[str, Any], micro: int, machines: JobMachines) -> ResolvedRun:
    before = config.parallel
    # ZeRO and shard sizes have no meaning for a strategy that does not shard.
    names = changes if changes["strategy"] in ("fsdp", "hsdp") else set(changes) - {"zero", "shard"}
    values = {name: changes[name] for name in names}
    after = replace(config, parallel=replace(before, **values), batch=replace(config.batch, micro=micro))
    chosen = {f"parallel.{name}": value for name, value in values.items() if getattr(before, name) != value}
    if config.batch.micro == "auto":
        chosen["batch.micro"] = micro
    return ResolvedRun(after, layout_from_config(after, machines.ranks, machines.per_node, micro), chosen)
