"""Collect the whole weights of a model that is spread over ranks."""

from __future__ import annotations

import torch

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.parallel.engine import Engine
from trainer.parallel.modules import strip_wrappers


@torch.no_grad()
def gather_weights(engine: Engine) -> dict[str, torch.Tensor]:
    """Return weights and buffers under all of their names in the model, in host memory; every rank must call it.

    Only rank 0 gets them, the others get an empty dict. A tied weight has several names.
    """
    if engine.mesh.layout.pipeline > 1:
        message = f"{engine.mesh.layout.pipeline}, but no rank can collect the weights of all stages"
        raise ConfigError(
            [ConfigProblem("parallel.pipeline", message, "export a checkpoint: python -m trainer export")]
        )
    whole: dict[str, torch.Tensor] = {}
    aliases = _list_aliases(engine)
    for name, value in [*engine.named_parameters(), *engine.named_buffers()]:
        # One at a time, so that the device never holds all of them.
        full = value.full_tensor() if hasattr(value, "full_tensor") else value
        if engine.mesh.rank == 0:
            copy = full.detach().to("cpu", copy=True)
            whole |= dict.fromkeys(aliases.get(name, [name]), copy)
    return whole


def _list_aliases(engine: Engine) -> dict[str, list[str]]:
    """Return all names of each parameter, by each of its names."""
    names: dict[int, list[str]] = {}
    for module in engine.modules:
        for name, value in module.named_parameters(remove_duplicate=False):
            names.setdefault(id(value), []).append(strip_wrappers(name))
    return {name: aliases for aliases in names.values() for name in aliases}
