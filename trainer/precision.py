"""Number formats of matrix products, and the loss scale that keeps fp16 gradients from underflowing."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainer.config.schema import Precision

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_FIRST_SCALE = 2.0**16
_GROW_AFTER_STEPS = 2000


def autocast_forward(model: nn.Module, precision: Precision, device: torch.device) -> None:
    """Run the model's forward in the given format; weights and their gradients stay fp32.

    Only the forward is cast: autograd uses the same formats in the backward pass, and the loss is computed in fp32.
    """
    if precision == "fp32":
        return
    forward = model.forward

    def cast_forward(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device.type, DTYPES[precision]):
            return forward(*args, **kwargs)

    model.forward = cast_forward


class LossScale:
    """Dynamic loss scaling on the device, so that no step waits to learn whether it overflowed.

    torch's GradScaler reads found_inf on the host and does not support pipeline stages. Here an overflow is detected
    from the global gradient norm, which is the same on all ranks.
    """

    def __init__(self, device: torch.device, first: float = _FIRST_SCALE, grow_after: int = _GROW_AFTER_STEPS) -> None:
        self.scale = torch.full((), first, device=device)
        self.good_steps = torch.zeros((), device=device)
        self._grow_after = grow_after

    def update(self, overflowed: torch.Tensor) -> None:
        """Halve the scale after an overflow, and double it after many steps without one."""
        good = torch.where(overflowed, 0.0, self.good_steps + 1)
        grows = good >= self._grow_after
        factor = torch.where(overflowed, 0.5, torch.where(grows, 2.0, 1.0))
        # Below 1 the scale cannot help: the gradients themselves overflow.
        self.scale.mul_(factor).clamp_(min=1.0)
        self.good_steps.copy_(torch.where(grows, 0.0, good))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the state that belongs in a checkpoint."""
        return {"scale": self.scale, "good_steps": self.good_steps}
