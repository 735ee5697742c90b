"""Slices of parameters with their gradients and moments in fp32, few enough at a time to bound the memory they take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch

from trainer.optimizers.moments import pack, select_rows, unpack
from trainer.optimizers.sizes import CHUNK_VALUES
from trainer.optimizers.slot import Slot
from trainer.parallel.gradients import to_local


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
    """Seed of the rounding of moments and weights."""


class Chunk:
    """Rows of several parameters with one storage format.

    fp32 weights and moments are changed in place. Others are copied to fp32 and stored again by `pack`.
    """

    def __init__(self, slots: list[Slot], rows: list[slice]) -> None:
        self._slots, self._rows = slots, rows
        self._is_packed = slots[0].storage[0] != "fp32"
        self._flat: dict[str, torch.Tensor] = {}
        self._shapes = [select_rows(slot.parameter, part).shape for slot, part in zip(slots, rows, strict=True)]

    @cached_property
    def gradients(self) -> list[torch.Tensor]:
        """The gradients in fp32."""
        return [self._align(slot.read_gradients(part)) for slot, part in zip(self._slots, self._rows, strict=True)]

    @cached_property
    def values(self) -> list[torch.Tensor]:
        """The weights in fp32."""
        return [self._align(slot.read_values(part)) for slot, part in zip(self._slots, self._rows, strict=True)]

    def unpack(self, key: str) -> list[torch.Tensor]:
        """Return the moments of this name in fp32."""
        moments = [slot.moments[key] for slot in self._slots]
        if not self._is_packed:
            return [select_rows(moment.values, part) for moment, part in zip(moments, self._rows, strict=True)]
        self._flat[key] = unpack(moments, self._rows)
        return self._split(self._flat[key])

    def pack(self, update: Update) -> None:
        """Store values and moments that were copied, and free the copies: the next chunk needs their memory."""
        # If nothing has read the weights, the update has left them as they are.
        if "values" in self.__dict__:
            for slot, rows, value in zip(self._slots, self._rows, self.values, strict=True):
                slot.write_values(rows, value, update.seed)
        for key, flat in self._flat.items():
            moments = [slot.moments[key] for slot in self._slots]
            noise = torch.empty_like(flat)
            for slot, rows, piece in zip(self._slots, self._rows, self._split(noise), strict=True):
                slot.draw_noise(key, rows, update.seed, piece)
            pack(flat, moments, self._rows, noise, update.skip)
        self._flat.clear()
        for name in ("values", "gradients"):
            self.__dict__.pop(name, None)

    def _split(self, flat: torch.Tensor) -> list[torch.Tensor]:
        pieces = flat.split([shape.numel() for shape in self._shapes])
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]

    def _align(self, value: torch.Tensor) -> torch.Tensor:
        """Return a contiguous tensor if moments are unpacked: the fused kernels need equal strides."""
        return value.contiguous() if self._is_packed else value


def list_chunks(slots: list[Slot]) -> Iterator[Chunk]:
    """Yield all rows of the slots; what is copied to fp32 in chunks of at most CHUNK_VALUES values, or one row."""
    by_storage: dict[tuple[str, int, bool], list[Slot]] = {}
    for slot in slots:
        by_storage.setdefault(slot.storage, []).append(slot)
    for (kind, _, is_copied), alike in by_storage.items():
        if kind == "fp32" and not is_copied:
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
