"""A parameter with its state in the optimizer: its moments and, for a bf16 weight, an fp32 copy if there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch

from trainer.optimizers.moments import Moment, round_to_bf16, select_rows
from trainer.parallel.gradients import to_local

_SEED_STRIDE = 1_000_003


@dataclass
class Slot:
    """A parameter and its moments by name."""

    name: str
    parameter: torch.Tensor
    moments: dict[str, Moment]
    master: torch.Tensor | None = None
    """The fp32 copy of a bf16 parameter that is updated; the parameter is that copy, rounded to the nearest."""

    @property
    def gradient(self) -> Any:
        """The gradient, in the placement of the parameter."""
        return self.parameter.grad

    @property
    def has_values(self) -> bool:
        """Whether this rank has any row of the parameter."""
        return to_local(self.parameter).numel() > 0

    @property
    def storage(self) -> tuple[str, int, bool]:
        """What slots must have in common to be updated together.

        The format of the moments, the number of values in a block of them, and whether weights or gradients have to be
        copied to fp32.
        """
        moment = next(iter(self.moments.values()), None)
        updated = self.parameter if self.master is None else self.master
        is_copied = not updated.dtype == self.gradient.dtype == torch.float32
        return ("fp32", 0, is_copied) if moment is None else (moment.format, moment.block_size, is_copied)

    def read_values(self, rows: slice) -> torch.Tensor:
        """Return rows of the weights in fp32: a view of what is updated, or a copy of bf16 weights."""
        return select_rows(self.parameter if self.master is None else self.master, rows).float()

    def read_gradients(self, rows: slice) -> torch.Tensor:
        """Return rows of the gradient in fp32: a view if it is stored so, else a copy."""
        return select_rows(self.gradient, rows).float()

    def write_values(self, rows: slice, values: torch.Tensor, seed: int) -> None:
        """Store rows that `read_values` returned, after they changed.

        Without an fp32 copy, bf16 weights are rounded stochastically: an update is often smaller than half of their
        resolution, and rounding to the nearest value would lose it. Values that did not change have no bits to round.
        """
        stored = select_rows(self.parameter, rows)
        updated = stored if self.master is None else select_rows(self.master, rows)
        if updated.dtype == torch.float32 and updated.data_ptr() != values.data_ptr():
            updated.copy_(values)
        if stored.dtype == torch.float32:
            return
        if self.master is None:
            noise = torch.empty_like(values)
            self.draw_noise("weights", rows, seed, noise)
            values = round_to_bf16(values, noise)
        stored.copy_(values)

    def draw_noise(self, key: str, rows: slice, seed: int, noise: torch.Tensor) -> None:
        """Fill `noise` by the name of the parameter, so that all ranks that hold the same rows round them alike."""
        generator = torch.Generator(noise.device)
        generator.manual_seed(self.make_seed(key, rows.start, seed))
        noise.uniform_(generator=generator)

    def make_seed(self, key: str, row: int | None, seed: int) -> int:
        """Return the seed of noise that starts at a row, from the seed of an update."""
        place = crc32(f"{self.name}.{key}:{row}".encode())
        return (seed * _SEED_STRIDE + place) % 2**63
