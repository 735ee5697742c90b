"""Settings that were left open (strategy, micro-batch) become definite, the same on every rank, with the reasons."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from trainer.config.schema import Config, ParallelConfig
from trainer.data.source import Source
from trainer.world import World

if TYPE_CHECKING:
    from trainer.auto.choose import Choice
    from trainer.auto.memory import ModelSizes

FILE = "chosen.json"


@dataclass(frozen=True)
class Settled:
    """The config without `auto`, the micro-batch, and why."""

    config: Config
    micro: int
    why: list[str]
    new: dict[str, Any] | None = None

    def keep(self, folder: Path) -> None:
        """A restart on as many ranks must not choose otherwise because memory differs, or because ranks that are about
        to die still hold some."""
        if self.new is not None:
            (folder / FILE).write_text(json.dumps(self.new) + "\n", encoding="utf-8")


def settle(config: Config, world: World, source: Source, folder: Path) -> Settled:
    if config.parallel.strategy != "auto" and config.batch.micro != "auto":
        return Settled(config, config.batch.micro, [])
    kept = _from_rank_0(lambda: _kept(config, world, folder / FILE), world)
    if kept is not None:
        return Settled(*_definite(config, kept), [f"as before: {line}" for line in kept["why"]])
    choice = _choose(config, world, source)
    new = {**_question(config, world), "parallel": asdict(choice.parallel), "micro": choice.micro, "why": choice.why}
    return Settled(*_definite(config, new), list(choice.why), new)


def _choose(config: Config, world: World, source: Source) -> Choice:
    # Only what is left open is worth the time that these take.
    from trainer.auto import choose, measure  # noqa: PLC0415
    from trainer.auto.memory import bound_sizes  # noqa: PLC0415

    free, most = measure.find_least_free_memory(world), bound_sizes(config)
    choice = choose.choose_without_measuring(config, most, free, world.size, world.local_size) if most else None
    return choice or choose.choose(config, _measured(config, world, source), free, world.size, world.local_size)


def _definite(config: Config, kept: dict[str, Any]) -> tuple[Config, int]:
    parallel, micro = ParallelConfig(**kept["parallel"]), int(kept["micro"])
    return replace(config, parallel=parallel, batch=replace(config.batch, micro=micro)), micro


def _question(config: Config, world: World) -> dict[str, Any]:
    """What the choice is an answer to."""
    asked = {"parallel": asdict(config.parallel), "batch": asdict(config.batch), "model": asdict(config.model)}
    return json.loads(json.dumps({"asked": asked, "precision": config.precision, "ranks": world.size}))


def _kept(config: Config, world: World, file: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    same = all(found.get(name) == value for name, value in _question(config, world).items())
    return found if same else None


def _from_rank_0(look: Callable[[], dict[str, Any] | None], world: World) -> dict[str, Any] | None:
    """Every rank takes the same way: one that saw the file and one that did not would wait for each other."""
    answer = [look() if world.rank == 0 else None]
    if world.group is not None:
        dist.broadcast_object_list(answer, src=0, group=world.group)
    return answer[0]


def _measured(config: Config, world: World, source: Source) -> ModelSizes:
    from trainer.auto import measure  # noqa: PLC0415

    # Two samples: batch norm refuses to average over one.
    arrays = source.fetch(np.zeros(2, dtype=np.int64), 0)
    return measure.measure_sizes(
        config, {name: torch.as_tensor(array) for name, array in arrays.items()}, world.device.type
    )
