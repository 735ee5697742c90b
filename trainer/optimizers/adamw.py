"""AdamW with torch's fused kernel, on each rank's own part of the parameters."""

from __future__ import annotations

import torch

from trainer.config.schema import OptimizerConfig
from trainer.optimizers.chunks import Slot, Update, list_chunks


class AdamW:
    """The update rule of AdamW (arXiv:1711.05101); elementwise, so parts of parameters are updated on their own."""

    signed_moments: tuple[str, ...] = ("first",)

    def __init__(self, config: OptimizerConfig) -> None:
        self._config = config

    def update(self, slots: list[Slot], decay: float, update: Update) -> None:
        """Update parameters that are on one device and have gradients."""
        for chunk in list_chunks([slot for slot in slots if slot.has_values]):
            torch._fused_adamw_(
                chunk.values,
                chunk.gradients,
                chunk.unpack("first"),
                chunk.unpack("second"),
                [],
                [update.count] * len(chunk.values),
                lr=update.rate,
                beta1=self._config.beta1,
                beta2=self._config.beta2,
                eps=self._config.eps,
                weight_decay=decay,
                amsgrad=False,
                maximize=False,
                grad_scale=update.divide,
                found_inf=update.skip,
            )
            chunk.pack(update)
