"""A classifier of fully connected layers."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from trainer.config.models import MlpConfig


class Mlp(nn.Module):
    """A multilayer perceptron with ReLU activations."""

    def __init__(self, config: MlpConfig) -> None:
        super().__init__()
        self.config = config
        widths = (config.inputs, *config.hidden)
        self.layers = nn.ModuleDict({str(i): nn.Linear(a, b) for i, (a, b) in enumerate(pairwise(widths))})
        self.head = nn.Linear(widths[-1], config.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        for layer in self.layers.values():
            x = F.relu(layer(x))
        return self.head(x)

    def init_buffers(self, device: torch.device | str) -> None:
        """Do nothing: an MLP has no buffers."""

    def initial(self, name: str, shape: tuple[int, ...]) -> tuple[float, float]:
        """Return the mean and standard deviation of a parameter's initial values.

        They keep the variance of the activations constant through the ReLUs.
        """
        if len(shape) == 1:
            return 0.0, 0.0
        return 0.0, (1.0 if name.startswith("head.") else 2.0) ** 0.5 / shape[1] ** 0.5
