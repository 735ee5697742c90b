"""Slices of parameters with their gradients and moments in fp32, few enough at a time to bound the memory they take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import torch

from trainer.optimizers.moments import Moment, pack, select_rows, unpack
from trainer.optimizers.sizes import CHUNK_VALUES
from trainer.parallel.gradients import to_local

_SEED_STRIDE = 1_000_003


@dataclass
class Slot:
    """A parameter and its moments by name."""

    name: str
    parameter: torch.Tensor
    moments: dict[str, Moment]

    @property
    def gradient(self) -> Any:
        """The gradient, in the placement of the parameter."""
        return self.parameter.grad

    @property
    def has_values(self) -> bool:
        """Whether this rank has any row of the parameter."""
        return to_local(self.parameter).numel() > 0

    @property
    def storage(self) -> tuple[str, int]:
        """What slots must have in common to be unpacked together: the format, and the number of values in a block."""
        moment = next(iter(self.moments.values()), None)
        return ("fp32", 0) if moment is None else (moment.format, moment.block_size)


@dataclass(frozen=True)
class Update:
    """What all parameters of a device share in an update."""

    rate: float
    divide: torch.Tensor | None
    """Number by which gradients are divided."""
    skip: torch.Tensor | None
    """1 to change nothing, else 0."""
    count: torch.Tensor
    """Updates so far, including this one unless it is skipped."""
    seed: int
    """Seed of the rounding of moments."""


class Chunk:
    """Rows of several parameters with one storage format.

    fp32 moments are changed in place. Others are unpacked by `unpack` and stored again by `pack`.
    """

    def __init__(self, slots: list[Slot], rows: list[slice]) -> None:
        self._slots, self._rows = slots, rows
        self._is_packed = slots[0].storage[0] != "fp32"
        self._flat: dict[str, torch.Tensor] = {}
        self._stored = [select_rows(slot.parameter, part) for slot, part in zip(slots, rows, strict=True)]
        # The fused kernels need equal strides, and unpacked moments are contiguous.
        self.values = [value.contiguous() for value in self._stored] if self._is_packed else self._stored
        gradients = [select_rows(slot.gradient, part) for slot, part in zip(slots, rows, strict=True)]
        self.gradients = [value.contiguous() for value in gradients] if self._is_packed else gradients

    def unpack(self, key: str) -> list[torch.Tensor]:
        """Return the moments of this name in fp32."""
        moments = [slot.moments[key] for slot in self._slots]
        if not self._is_packed:
            return [select_rows(moment.values, part) for moment, part in zip(moments, self._rows, strict=True)]
        self._flat[key] = unpack(moments, self._rows)
        pieces = self._flat[key].split([value.numel() for value in self.values])
        return [piece.view_as(value) for piece, value in zip(pieces, self.values, strict=True)]

    def pack(self, update: Update) -> None:
        """Store values and moments that `unpack` copied."""
        for value, stored in zip(self.values, self._stored, strict=True):
            if value is not stored:
                stored.copy_(value)
        for key, flat in self._flat.items():
            moments = [slot.moments[key] for slot in self._slots]
            pack(flat, moments, self._rows, self._draw_noise(key, update.seed), update.skip)
        self._flat.clear()

    def _draw_noise(self, key: str, seed: int) -> torch.Tensor:
        """Draw noise for each parameter by its name, so that all ranks that hold the same rows round them alike."""
        flat = torch.empty(sum(value.numel() for value in self.values), device=self.values[0].device)
        generator = torch.Generator(flat.device)
        pieces = flat.split([value.numel() for value in self.values])
        for slot, rows, piece in zip(self._slots, self._rows, pieces, strict=True):
            place = crc32(f"{slot.name}.{key}:{rows.start}".encode())
            generator.manual_seed((seed * _SEED_STRIDE + place) % 2**63)
            piece.uniform_(generator=generator)
        return flat


def list_chunks(slots: list[Slot]) -> Iterator[Chunk]:
    """Yield all rows of the slots; packed moments in chunks of at most CHUNK_VALUES values, or one row."""
    by_storage: dict[tuple[str, int], list[Slot]] = {}
    for slot in slots:
        by_storage.setdefault(slot.storage, []).append(slot)
    for (kind, _), alike in by_storage.items():
        if kind == "fp32":
            yield Chunk(alike, [slice(None)] * len(alike))
        else:
            yield from _split(alike)


def _split(slots: list[Slot]) -> Iterator[Chunk]:
    chosen: list[tuple[Slot, slice]] = []
    free = CHUNK_VALUES
    for slot in slots:
        for rows in _cut(slot):
            count = select_rows(slot.parameter, rows).numel()
            if chosen and count > free:
                yield _make_chunk(chosen)
                chosen, free = [], CHUNK_VALUES
            chosen.append((slot, rows))
            free -= count
    if chosen:
        yield _make_chunk(chosen)


def _make_chunk(chosen: list[tuple[Slot, slice]]) -> Chunk:
    return Chunk([slot for slot, _ in chosen], [rows for _, rows in chosen])


def _cut(slot: Slot) -> list[slice]:
    """Return the rows of a parameter in parts that fit into a chunk.

    They depend on nothing else, so that ranks with the same rows of it, but other parameters, draw the same noise.
    """
    local = to_local(slot.parameter)
    count = local.shape[0] if local.ndim else 1
    each = max(1, CHUNK_VALUES * count // max(1, local.numel()))
    return [slice(start, min(count, start + each)) for start in range(0, count, each)]
