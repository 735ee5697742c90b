"""The scales of fp8 products, derived from the largest values of the last steps."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from trainer.models.fp8 import DelayedScales, Fp8Linear
from trainer.models.fp8_formats import OPERAND_FORMATS, SMALLEST_SCALE
from trainer.parallel.mesh import Mesh
from trainer.parallel.modules import strip_wrappers

STEPS = 16
"""Length of the history: long enough for rare large values, short enough to follow gradients as they shrink."""


class Fp8History:
    """The largest absolute values of each fp8 layer's operands in the last steps; nothing waits for the device.

    All ranks agree on them once a step, so that they use the same scales. The scales are derived anew in each step, so
    a checkpoint needs the history only.
    """

    def __init__(self, modules: Iterable[nn.Module], mesh: Mesh) -> None:
        named = (item for module in modules for item in module.named_modules())
        layers = {strip_wrappers(name): part for name, part in named if isinstance(part, Fp8Linear)}
        operands, device = len(OPERAND_FORMATS), mesh.device
        self._names = list(layers)
        self._mesh = mesh
        self._history = torch.zeros(len(layers), STEPS, operands, device=device)
        self._limits = torch.tensor([torch.finfo(dtype).max for dtype in OPERAND_FORMATS], device=device)
        # Compiled blocks copy inputs that share memory with one that they change, so each of these has its own.
        self._layers = [
            DelayedScales(
                torch.zeros(operands, device=device),
                torch.zeros(operands - 1, device=device),
                torch.zeros((), device=device),
            )
            for _ in layers
        ]
        for layer, delayed in zip(layers.values(), self._layers, strict=True):
            layer.delayed = delayed

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors of a checkpoint by the names of the layers."""
        return dict(zip(self._names, self._history.unbind(), strict=True))

    @torch.no_grad()
    def begin(self) -> None:
        """Set the scales of a step; an operand that has only been 0 gets none."""
        largest = self._history.amax(1)
        scales = torch.where(largest > 0, (largest / self._limits).clamp(min=SMALLEST_SCALE), 0.0)
        torch._foreach_copy_([layer.scales for layer in self._layers], list(scales.unbind()))
        torch._foreach_zero_([layer.maxima for layer in self._layers])
        torch._foreach_zero_([layer.gradient_maximum for layer in self._layers])

    @torch.no_grad()
    def record(self, step: int, is_bad: torch.Tensor) -> None:
        """Add the largest values of a step to the history, unless its gradients have a NaN or an infinity."""
        maxima = torch.stack([layer.maxima for layer in self._layers])
        of_gradients = torch.stack([layer.gradient_maximum for layer in self._layers])
        maxima = self._mesh.max_over_data(torch.cat((maxima, of_gradients[:, None]), dim=1))
        place = self._history[:, step % STEPS]
        place.copy_(torch.where(is_bad | ~maxima.isfinite(), place, maxima))
