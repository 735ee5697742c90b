"""SGD with or without momentum, with torch's fused kernel, on each rank's own part of the parameters."""

from __future__ import annotations

import torch

from trainer.config.schema import OptimizerConfig
from trainer.optimizers.chunks import Update, list_chunks
from trainer.optimizers.slot import Slot


class Sgd:
    """The update rule of stochastic gradient descent; weight decay is added to the gradient, as torch does."""

    signed_moments: tuple[str, ...] = ("momentum",)

    def __init__(self, config: OptimizerConfig) -> None:
        self._momentum = config.momentum

    def update(self, slots: list[Slot], decay: float, update: Update) -> None:
        """Update parameters that are on one device and have gradients."""
        for chunk in list_chunks([slot for slot in slots if slot.has_values]):
            torch._fused_sgd_(
                chunk.values,
                chunk.gradients,
                chunk.unpack("momentum") if self._momentum else [],
                weight_decay=decay,
                momentum=self._momentum,
                lr=update.rate,
                dampening=0.0,
                nesterov=False,
                maximize=False,
                is_first_step=False,
                grad_scale=update.divide,
                found_inf=update.skip,
            )
            chunk.pack(update)
