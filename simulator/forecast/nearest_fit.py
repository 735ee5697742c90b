"""The nearest settings of the trainer with which a run fits into memory, as words to add to its command."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.forecast.settle import Settled
from simulator.layout import Layout
from simulator.machines.requested import On
from simulator.memory.nearest import list_layout_changes
from simulator.memory.peak import fits_in_memory, predict_memory
from simulator.model import Transformer
from simulator.models import build_model
from simulator.search.trainer_config import parallel, unsupported
from trainer.config.check import check, check_world
from trainer.config.schema import Config


def nearest_fit(found: Settled, on: On) -> str:
    """Empty where nothing near it fits."""
    config, model = found.config, build_model(found.config.model, found.config.data.seq_len)
    for _, changed in list_layout_changes(model, found.layout):
        if not _there_are(changed.gpus, on) or not fits_in_memory(predict_memory(model, changed, on.system), on.is_gpu):
            continue
        if isinstance(model, Transformer) and unsupported(model, changed):
            continue
        if words := _words(config, found.layout, changed, on):
            return words
    return ""


def _there_are(gpus: int, on: On) -> bool:
    """As many of the catalog's as one likes, in whole nodes; of measured ones those that were."""
    if not on.of_catalog:
        return gpus == on.ranks
    each = on.sheet.gpus_per_node
    return gpus <= each or gpus % each == 0


def _words(config: Config, before: Layout, after: Layout, on: On) -> str:
    """Settings that differ, and more nodes or ranks; empty where the trainer would refuse them."""
    tree = {**parallel(after), "offload": after.offload}
    if (before.dp, before.zero, before.shard) == (after.dp, after.zero, after.shard):
        tree["strategy"] = config.parallel.strategy
    wanted = replace(
        config,
        parallel=replace(config.parallel, **tree),
        batch=replace(config.batch, size=after.global_batch, micro=after.micro_batch),
    )
    each = on.sheet.gpus_per_node
    if check(wanted) or check_world(wanted, after.gpus, min(each, after.gpus)):
        return ""
    words = [*_settings(config, wanted, _unsaid(before, after))]
    if after.gpus != before.gpus:
        words.append(f"--ranks {after.gpus}" if on.per_node < each else f"--nodes {after.gpus // each}")
    return " ".join(words)


def _unsaid(before: Layout, after: Layout) -> tuple[str, ...]:
    """What means nothing without shards, or is as it was though nobody wrote it down."""
    if not after.zero:
        return ("zero", "shard")
    return ("shard",) if before.shard == after.shard else ()


def _settings(config: Config, wanted: Config, unsaid: tuple[str, ...]) -> Iterator[str]:
    for name, value in vars(wanted.parallel).items():
        if name not in unsaid and getattr(config.parallel, name) != value:
            yield f"parallel.{name}={str(value).lower() if isinstance(value, bool) else value}"
    for name in ("size", "micro"):
        if getattr(config.batch, name) != getattr(wanted.batch, name):
            yield f"batch.{name}={getattr(wanted.batch, name)}"
