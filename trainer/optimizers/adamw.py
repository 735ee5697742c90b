"""AdamW with a fused kernel, on each rank's own part of the parameters."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from trainer.config.schema import OptimizerConfig
from trainer.optimizers.chunks import Update, list_chunks
from trainer.optimizers.slot import Slot

_HAS_TRITON = find_spec("triton") is not None
_LEAST_VALUES = 2**18
"""Values of a tensor for which a launch of its own is worth it; torch's kernel updates all smaller ones at once."""


class AdamW:
    """The update rule of AdamW (arXiv:1711.05101); elementwise, so parts of parameters are updated on their own."""

    signed_moments: tuple[str, ...] = ("first",)

    def __init__(self, config: OptimizerConfig) -> None:
        self._config = config

    def update(self, slots: list[Slot], decay: float, update: Update) -> None:
        """Update parameters that are on one device and have gradients."""
        for chunk in list_chunks([slot for slot in slots if slot.has_values]):
            tensors = list(
                zip(chunk.values, chunk.gradients, chunk.unpack("first"), chunk.unpack("second"), strict=True)
            )
            large = [each for each in tensors if has_kernel(each)]
            small = [each for each in tensors if not has_kernel(each)]
            if large:
                self._update_large(large, decay, update)
            if small:
                self._update_small(small, decay, update)
            chunk.pack(update)

    def _update_small(self, tensors: list[tuple[torch.Tensor, ...]], decay: float, update: Update) -> None:
        values, gradients, firsts, seconds = (list(each) for each in zip(*tensors, strict=True))
        torch._fused_adamw_(
            values,
            gradients,
            firsts,
            seconds,
            [],
            [update.count] * len(values),
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

    def _update_large(self, tensors: list[tuple[torch.Tensor, ...]], decay: float, update: Update) -> None:
        # Start-up: only runs on a GPU need Triton.
        from trainer.optimizers.adamw_kernel import update_tensor  # noqa: PLC0415

        count = update.count.double()
        corrections = torch.stack((1 - self._config.beta1**count, (1 - self._config.beta2**count).sqrt())).float()
        for value, gradient, *moments in tensors:
            update_tensor(
                value,
                gradient,
                (moments[0], moments[1]),
                corrections=corrections,
                decay=decay,
                update=update,
                config=self._config,
            )


def has_kernel(tensors: tuple[torch.Tensor, ...]) -> bool:
    """Return whether a kernel of its own updates a parameter, given with its gradient and moments."""
    is_large = _HAS_TRITON and tensors[0].is_cuda and tensors[0].numel() >= _LEAST_VALUES
    return is_large and all(each.is_contiguous() and each.dtype == torch.float32 for each in tensors)
