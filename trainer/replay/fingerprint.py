"""Fingerprints of tensors: numbers that change if any bit of a tensor changes, computed on its device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch

from trainer.parallel.gradients import to_local

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_COLUMNS = 1024
# Both are arbitrary. A flipped bit changes the sum of its row by a power of 2, times an odd number, and the sum of its
# column by the same, times an even one: the two can never cancel.
_ODD = 0x1E3779B97F4A7C15
_EVEN = 0x3F58476D1CE4E5B8


@torch.no_grad()
def compute_fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """Return a number for the bits of this rank's part of a tensor; nothing waits for the device.

    Bits are added up as integers, in any order, so that the result is always the same. A single flipped bit always
    changes it; several changes, or values that have changed places, are missed once in 2^63 at random.
    """
    local = to_local(tensor.detach()).contiguous().flatten()
    bits = local.view(_INTEGERS[local.element_size()])
    size = bits.numel() // _COLUMNS * _COLUMNS
    grid, tail = bits[:size].view(-1, _COLUMNS), bits[size:]
    rows = _mix(grid.sum(1, dtype=torch.int64))
    return rows + _EVEN * _mix(grid.sum(0, dtype=torch.int64)) + 3 * _mix(tail.long())


def read_fingerprints(values: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return fingerprints as numbers on the host, which waits for the device once."""
    if not values:
        return {}
    device = next(iter(values.values())).device
    return dict(zip(values, torch.stack([value.to(device) for value in values.values()]).tolist(), strict=True))


class GradientFingerprints:
    """The fingerprints of a rank's own gradients, taken before they are added to those of other ranks."""

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """`parameters` are the tensors for which autograd computes gradients on this rank."""
        self._parameters = {name: value for name, value in parameters.items() if value.requires_grad}
        self.values: dict[str, torch.Tensor] = {}

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record the gradients of all micro-batches in this block."""
        self.values = {}
        hooks = [value.register_hook(partial(self._add, name)) for name, value in self._parameters.items()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _add(self, name: str, gradient: torch.Tensor) -> None:
        value = compute_fingerprint(gradient)
        before = self.values.get(name)
        # The result depends on the order and on the micro-batches.
        self.values[name] = value if before is None else before * _ODD + value


def _mix(values: torch.Tensor) -> torch.Tensor:
    """Return a sum, modulo 2^64, in which each place has its own odd factor."""
    factors = (2 * torch.arange(len(values), device=values.device) + 1) * _ODD
    return (values * factors).sum()
