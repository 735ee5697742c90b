"""Statistics that a forward pass keeps, such as a batch norm's: an update that is left out leaves none of it behind."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from trainer.parallel.gradients import to_local


class Statistics:
    """A copy before each step, and a choice on the device after it; a few kernels, whatever the number of buffers."""

    def __init__(self, buffers: Iterable[tuple[str, torch.Tensor]]) -> None:
        groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        for _, buffer in buffers:
            # Counters of batches only count.
            if buffer.is_floating_point() and buffer.numel():
                groups.setdefault((buffer.device, buffer.dtype), []).append(to_local(buffer))
        self._groups = list(groups.values())
        self._before: list[torch.Tensor] = []

    @torch.no_grad()
    def note(self) -> None:
        self._before = [_flat(buffers) for buffers in self._groups]

    @torch.no_grad()
    def put_back(self, skipped: torch.Tensor) -> None:
        """What was noted, where `skipped` is 1."""
        for buffers, before in zip(self._groups, self._before, strict=True):
            chosen = torch.where(skipped.to(before.device) > 0, before, _flat(buffers))
            parts = chosen.split([buffer.numel() for buffer in buffers])
            torch._foreach_copy_(buffers, [part.view_as(to) for part, to in zip(parts, buffers, strict=True)])


def _flat(buffers: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([buffer.flatten() for buffer in buffers])
