"""Fingerprints of the weights in each step, to find the first step in which copies differed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from trainer.checkpoint.group import RankGroup
from trainer.parallel.gradients import to_local
from trainer.replay.blame import Result

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORD_BYTES = 8


@dataclass(frozen=True)
class Undecided:
    """Weights that differed, of which it is not known which are wrong."""

    step: int
    """Completed steps."""
    results: Sequence[Result]
    in_step: bool = False
    """Whether these are the weights in the step after, before its update, as the history has them."""

    def is_at(self, step: int, *, in_step: bool) -> bool:
        """Return whether these are the weights of this moment."""
        return (self.step, self.in_step) == (step, in_step)


class WeightHistory:
    """The weights of this rank before each update since the ranks last agreed; nothing waits for the device.

    A sum of all bits has to do, as it is taken in every step. It changes if a single bit does.
    """

    def __init__(self, parameters: Iterable[tuple[str, torch.Tensor]], group: RankGroup) -> None:
        self._parameters = [value for _, value in parameters if value.requires_grad]
        self._group = group
        self._sums: dict[int, torch.Tensor] = {}

    @torch.no_grad()
    def record(self, step: int) -> None:
        """Record the weights after this number of steps."""
        self._sums[step] = torch.stack([_add_bits(to_local(value)) for value in self._parameters]).sum()

    def read(self, step: int) -> str:
        """Return the weights of a step; the host waits for the device."""
        return str(int(self._sums[step]))

    def summarise(self) -> str:
        """Return a text that is the same on two ranks whose weights were the same; the host waits for the device."""
        sums = torch.stack(list(self._sums.values())).tolist() if self._sums else []
        return hashlib.sha256(json.dumps(sums).encode()).hexdigest()[:16]

    def clear(self) -> None:
        """Forget all steps: the ranks agree."""
        self._sums.clear()

    def find_first_difference(self, results: Sequence[Result]) -> Undecided | None:
        """Return the first weights that differ between ranks with the same item of `results`; None if none do.

        Every rank must call it.
        """
        steps = list(self._sums)
        own = torch.stack(list(self._sums.values())).tolist() if steps else []
        rows = self._group.gather([str(value) for value in own])
        for place, step in enumerate(steps):
            then = [Result(result.item, result.rank, rows[result.rank][place]) for result in results]
            if len({(result.item, result.fingerprint) for result in then}) > len({result.item for result in then}):
                return Undecided(step, then, in_step=True)
        return None


def _add_bits(values: torch.Tensor) -> torch.Tensor:
    """Return the sum of the values' bits as integers; words of 64 bits need no conversion, so they are faster."""
    flat = values.detach().contiguous().view(-1)
    size = flat.element_size()
    per_word = _WORD_BYTES // size
    if flat.storage_offset() * size % _WORD_BYTES:
        return flat.view(_INTEGERS[size]).sum(dtype=torch.int64)
    count = flat.numel() // per_word * per_word
    if count == flat.numel():
        return flat.view(torch.int64).sum()
    return flat[:count].view(torch.int64).sum() + flat[count:].view(_INTEGERS[size]).sum(dtype=torch.int64)
