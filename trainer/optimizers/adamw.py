"""AdamW with a fused kernel, on each rank's own part of the parameters."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from trainer.config.schema import OptimizerConfig
from trainer.optimizers.chunks import Chunk, Update, list_chunks
from trainer.optimizers.slot import Slot
from trainer.parallel.gradients import to_local

_HAS_TRITON = find_spec("triton") is not None
_KERNEL_DTYPES = (torch.float32, torch.bfloat16)
_LEAST_VALUES = 2**18
"""Values of a tensor for which a launch of its own is worth it; torch's kernel updates all smaller ones at once."""


class AdamW:
    """The update rule of AdamW (arXiv:1711.05101); elementwise, so parts of parameters are updated on their own."""

    signed_moments: tuple[str, ...] = ("first",)

    def __init__(self, config: OptimizerConfig) -> None:
        self._config = config

    def update(self, slots: list[Slot], decay: float, update: Update) -> None:
        """Update parameters that are on one device and have gradients."""
        large: list[Slot] = []
        small: list[Slot] = []
        for slot in slots:
            if slot.has_values:
                (large if has_kernel(slot) else small).append(slot)
        if large:
            self._update_large(large, decay, update)
        for chunk in list_chunks(small):
            self._update_small(chunk, decay, update)
            chunk.pack(update)

    def _update_small(self, chunk: Chunk, decay: float, update: Update) -> None:
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

    def _update_large(self, slots: list[Slot], decay: float, update: Update) -> None:
        # Start-up: only runs on a GPU need Triton.
        from trainer.optimizers.adamw_kernel import update_slot  # noqa: PLC0415

        count = update.count.double()
        corrections = torch.stack((1 - self._config.beta1**count, (1 - self._config.beta2**count).sqrt())).float()
        for slot in slots:
            update_slot(slot, corrections=corrections, decay=decay, update=update, config=self._config)


def has_kernel(slot: Slot) -> bool:
    """Return whether a kernel of its own updates a parameter that has a gradient."""
    parameter = to_local(slot.parameter)
    if not (_HAS_TRITON and parameter.is_cuda and parameter.numel() >= _LEAST_VALUES):
        return False
    tensors = [slot.parameter, slot.gradient, *(moment.values for moment in slot.moments.values())]
    tensors += [] if slot.master is None else [slot.master]
    return all(to_local(each).is_contiguous() and each.dtype in _KERNEL_DTYPES for each in tensors)
