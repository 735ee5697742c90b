"""Settings that were left open (strategy, micro-batch) become definite, the same on every rank, with the reasons."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from trainer.config.schema import Config
from trainer.data.source import Source
from trainer.world import World


def settle(config: Config, world: World, source: Source) -> tuple[Config, int, list[str]]:
    """The config without `auto`, the micro-batch, and why."""
    if config.parallel.strategy != "auto" and config.batch.micro != "auto":
        return config, config.batch.micro, []
    # Only what is left open is worth the second that measuring takes.
    from trainer.auto import choose, measure  # noqa: PLC0415

    # Two: batch norm refuses to average over one.
    arrays = source.fetch(np.zeros(2, dtype=np.int64), 0)
    sizes = measure.sizes(config, {name: torch.as_tensor(array) for name, array in arrays.items()}, world.device.type)
    choice = choose.choose(config, sizes, measure.least_free(world), world.size, world.local_size)
    settled = replace(config, parallel=choice.parallel, batch=replace(config.batch, micro=choice.micro))
    return settled, choice.micro, list(choice.why)
