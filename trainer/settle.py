"""Settings that were left open (strategy, micro-batch) become definite, the same on every rank, with the reasons."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from trainer.config.schema import Config
from trainer.data.source import Source
from trainer.world import World

if TYPE_CHECKING:
    from trainer.auto.memory import Sizes


def settle(config: Config, world: World, source: Source) -> tuple[Config, int, list[str]]:
    """The config without `auto`, the micro-batch, and why."""
    if config.parallel.strategy != "auto" and config.batch.micro != "auto":
        return config, config.batch.micro, []
    # Only what is left open is worth the time that these take.
    from trainer.auto import choose, memory_left  # noqa: PLC0415
    from trainer.auto.bound import bound  # noqa: PLC0415

    free, most = memory_left.least_free(world), bound(config)
    choice = choose.certain(config, most, free, world.size, world.local_size) if most else None
    if choice is None:
        choice = choose.choose(config, _measured(config, world, source), free, world.size, world.local_size)
    settled = replace(config, parallel=choice.parallel, batch=replace(config.batch, micro=choice.micro))
    return settled, choice.micro, list(choice.why)


def _measured(config: Config, world: World, source: Source) -> Sizes:
    from trainer.auto import measure  # noqa: PLC0415

    # Two samples: batch norm refuses to average over one.
    arrays = source.fetch(np.zeros(2, dtype=np.int64), 0)
    return measure.sizes(config, {name: torch.as_tensor(array) for name, array in arrays.items()}, world.device.type)
