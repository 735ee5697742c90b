"""Find the nearest settings with which a run fits in memory, as options to add to its command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.forecast.resolve import ResolvedRun
from simulator.layout import Layout
from simulator.machines.job_machines import JobMachines
from simulator.memory.nearest import list_layout_changes
from simulator.memory.peak import fits_in_memory, predict_memory
from simulator.model import Transformer
from simulator.models import build_model
from simulator.search.trainer_config import parallel_settings, unsupported_reason
from trainer.config.check import check, check_world
from trainer.config.schema import Config


def nearest_fit(run: ResolvedRun, machines: JobMachines) -> str:
    """Return settings and options that make the run fit in memory; empty if nothing similar does."""
    config, model = run.config, build_model(run.config.model, run.config.data.seq_len)
    for _, changed in list_layout_changes(model, run.layout):
        if not _exist(changed.gpus, machines):
            continue
        if not fits_in_memory(predict_memory(model, changed, machines.system), machines.is_gpu):
            continue
        if isinstance(model, Transformer) and unsupported_reason(model, changed):
            continue
        if options := _options(config, run.layout, changed, machines):
            return options
    return ""


def _exist(gpus: int, machines: JobMachines) -> bool:
    """Return whether there are this many GPUs: any number of the catalog's nodes, but only the measured ranks."""
    if not machines.of_catalog:
        return gpus == machines.ranks
    per_node = machines.sheet.gpus_per_node
    return gpus <= per_node or gpus % per_node == 0


def _options(config: Config, before: Layout, after: Layout, machines: JobMachines) -> str:
    """Return the settings that differ, and more nodes or ranks; empty if the trainer would reject them."""
    tree = {**parallel_settings(after), "offload": after.offload}
    if (before.dp, before.zero, before.shard) == (after.dp, after.zero, after.shard):
        tree["strategy"] = config.parallel.strategy
    changed = replace(
        config,
        parallel=replace(config.parallel, **tree),
        batch=replace(config.batch, size=after.global_batch, micro=after.micro_batch),
    )
    per_node = machines.sheet.gpus_per_node
    if check(changed) or check_world(changed, after.gpus, min(per_node, after.gpus)):
        return ""
    options = [*_changed_settings(config, changed, _implied(before, after))]
    if after.gpus != before.gpus:
        more_ranks, more_nodes = f"--ranks {after.gpus}", f"--nodes {after.gpus // per_node}"
        options.append(more_ranks if machines.per_node < per_node else more_nodes)
    return " ".join(options)


def _implied(before: Layout, after: Layout) -> tuple[str, ...]:
    """Return settings to leave out: those without meaning for unsharded state, or unchanged defaults."""
    if not after.zero:
        return ("zero", "shard")
    return ("shard",) if before.shard == after.shard else ()


def _changed_settings(config: Config, changed: Config, implied: tuple[str, ...]) -> Iterator[str]:
    for name, value in vars(changed.parallel).items():
        if name not in implied and getattr(config.parallel, name) != value:
            yield f"parallel.{name}={str(value).lower() if isinstance(value, bool) else value}"
    for name in ("size", "micro"):
        if getattr(config.batch, name) != getattr(changed.batch, name):
            yield f"batch.{name}={getattr(changed.batch, name)}"
