"""The gradients of LoRA's matrices on one of several ranks."""

from __future__ import annotations

from typing import Any

import torch

from tests.trainer.curves import global_batch, make_step
from trainer.config.load import from_dict
from trainer.models.init import copy_local_part
from trainer.models.lora import is_adapter


def compute_gradients(config: dict[str, Any], micro: int) -> dict[str, Any]:
    """Return the whole gradient of each trained weight in one step; LoRA's B is not zero, so A has one, too."""
    settings = from_dict(config)
    step = make_step(settings)
    mesh = step.engine.mesh
    for name, parameter in step.engine.named_parameters():
        if is_adapter(name):
            generator = torch.Generator().manual_seed(len(name))
            copy_local_part(0.1 * torch.randn(parameter.shape, generator=generator), parameter)
    size = settings.batch.size // mesh.layout.dp_size
    batch = {key: value[mesh.dp_rank * size :][:size] for key, value in global_batch(settings, 0).items()}
    gradients: dict[str, Any] = {}

    def collect() -> None:
        for name, parameter in step.engine.named_parameters():
            gradient: Any = parameter.grad
            if gradient is not None:
                whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
                gradients[name] = whole.numpy().copy()

    step.before_update = collect
    step.run(batch, micro)
    return gradients
