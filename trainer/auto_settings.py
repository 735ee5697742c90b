"""Replace `auto` settings (strategy, micro-batch) by definite ones, the same on every rank, and give the reasons."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trainer.config.schema import Config, ParallelConfig
from trainer.data.source import Source
from trainer.json_exchange import broadcast_from_first
from trainer.world import World

if TYPE_CHECKING:
    from trainer.auto.choose import Choice
    from trainer.auto.sizes import ModelSizes

FILE = "chosen.json"

# Start-up: trainer.auto is imported only by runs that leave a choice open.
# ruff: noqa: PLC0415


@dataclass(frozen=True)
class ResolvedSettings:
    """A configuration without `auto`, the micro-batch, and the reasons for what was chosen."""

    config: Config
    micro: int
    reasons: list[str]
    record: dict[str, Any] | None = None
    """The content of the file that `save` writes; None if there was nothing to choose or the file exists already."""

    def save(self, folder: Path) -> None:
        """Write the choice for later starts on the same number of ranks.

        A later start must not choose differently just because less memory is free, for example while ranks of the
        previous start are still exiting.
        """
        if self.record is not None:
            (folder / FILE).write_text(json.dumps(self.record) + "\n", encoding="utf-8")


def resolve_auto(config: Config, world: World, source: Source, folder: Path) -> ResolvedSettings:
    """Return definite settings: those of an earlier start in this folder if nothing has changed, or a new choice."""
    if config.parallel.strategy != "auto" and config.batch.micro != "auto":
        return ResolvedSettings(config, config.batch.micro, [])
    earlier = _read_on_rank_0(lambda: _read_earlier(config, world, folder / FILE), world)
    if earlier is not None:
        return ResolvedSettings(*_apply(config, earlier), [f"as before: {line}" for line in earlier["why"]])
    choice = _choose(config, world, source)
    chosen = {"parallel": asdict(choice.parallel), "micro": choice.micro, "why": choice.why}
    record = {**_list_choice_inputs(config, world), **chosen}
    return ResolvedSettings(*_apply(config, record), list(choice.why), record)


def _choose(config: Config, world: World, source: Source) -> Choice:
    from trainer.auto import choose, measure
    from trainer.auto.sizes import bound_sizes

    free, bound = measure.find_least_free_memory(world), bound_sizes(config)
    choice = choose.choose_without_measuring(config, bound, free, world.size, world.local_size) if bound else None
    return choice or choose.choose(config, _measure(config, world, source), free, world.size, world.local_size)


def _measure(config: Config, world: World, source: Source) -> ModelSizes:
    from trainer.auto import measure

    # Two samples, because batch norm cannot average over one.
    arrays = source.fetch(np.zeros(2, dtype=np.int64), 0)
    samples = {name: torch.as_tensor(array) for name, array in arrays.items()}
    return measure.measure_sizes(config, samples, world.device.type)


def _apply(config: Config, record: dict[str, Any]) -> tuple[Config, int]:
    parallel, micro = ParallelConfig(**record["parallel"]), int(record["micro"])
    return replace(config, parallel=parallel, batch=replace(config.batch, micro=micro)), micro


def _list_choice_inputs(config: Config, world: World) -> dict[str, Any]:
    """Return everything that the choice depends on, except free memory."""
    optimizer, lora, communication = config.optimizer, config.lora, config.communication
    settings = {
        "parallel": asdict(config.parallel),
        "batch": asdict(config.batch),
        "model": asdict(config.model),
        "seq_len": config.data.seq_len,
        "documents": config.data.documents,
        "chunk_tokens": config.loss.chunk_tokens,
        "optimizer": [optimizer.name, optimizer.moments, optimizer.momentum > 0, optimizer.muon_exclude],
        "formats": [optimizer.weights, optimizer.master, optimizer.gradients],
        "lora": [lora.rank, lora.layers],
    }
    # Only if they take memory, so that the choices of earlier versions stay valid for all other runs.
    if communication.compression != "none" or communication.inner_steps:
        stored = [communication.compression, communication.smoothing > 0, communication.inner_steps > 0]
        settings["communication"] = stored
    return json.loads(json.dumps({"asked": settings, "precision": config.precision, "ranks": world.size}))


def _read_earlier(config: Config, world: World, file: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    is_same = all(record.get(name) == value for name, value in _list_choice_inputs(config, world).items())
    return record if is_same else None


def _read_on_rank_0(read: Callable[[], dict[str, Any] | None], world: World) -> dict[str, Any] | None:
    """Return what rank 0 reads, on all ranks: if only some ranks saw the file, their choices would differ."""
    answer = read() if world.rank == 0 else None
    if world.group is None:
        return answer
    received: dict[str, Any] | None = broadcast_from_first(answer, world.group)
    return received
