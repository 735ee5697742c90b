"""Let cuDNN choose the kernels of convolutions by measuring them."""

from __future__ import annotations

import torch
from torch import nn

from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.units import Units


def tune_convolutions(model: nn.Module, _units: Units, _recipe: Recipe, mesh: Mesh) -> None:
    """Measure kernels for each new shape, unless they must be the same in every run."""
    has_convolutions = any(isinstance(part, nn.modules.conv._ConvNd) for part in model.modules())
    if has_convolutions and mesh.device.type == "cuda" and not torch.are_deterministic_algorithms_enabled():
        torch.backends.cudnn.benchmark = True
