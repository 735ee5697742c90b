"""Muon: momentum whose matrices are orthogonalised before they are added to the weights.

https://kellerjordan.github.io/posts/muon/ has the rule. The update is scaled to the size of AdamW's, as in
arXiv:2502.16982, so that learning rate and weight decay serve the parameters that AdamW updates too.
"""

from __future__ import annotations

import math

import torch

from trainer.config.schema import OptimizerConfig
from trainer.optimizers.chunks import Chunk, Update
from trainer.optimizers.orthogonalize import list_own_matrices, orthogonalize_parts
from trainer.optimizers.slot import Slot
from trainer.parallel.mesh import Mesh

_ADAMW_UPDATE_RMS = 0.2
"""Root mean square of AdamW's update, relative to the learning rate, as measured in arXiv:2502.16982."""


class Muon:
    """The update rule of Muon with Nesterov's momentum, for whole matrices or their rows."""

    signed_moments: tuple[str, ...] = ("momentum",)

    def __init__(self, config: OptimizerConfig, mesh: Mesh | None) -> None:
        self._momentum = config.muon_momentum
        self._mesh = mesh

    def update(self, slots: list[Slot], decay: float, update: Update) -> None:
        """Update matrices that are on one device and have gradients; every data-parallel rank must call it."""
        by_shape: dict[torch.Size, list[Slot]] = {}
        for slot in slots:
            by_shape.setdefault(slot.parameter.shape, []).append(slot)
        # Each data-parallel rank orthogonalises one matrix at a time; matrices of one shape take equally long.
        count = 1 if self._mesh is None else self._mesh.weights.dp_size
        for alike in by_shape.values():
            for first in range(0, len(alike), count):
                self._update_matrices(alike[first : first + count], decay, update)

    def _update_matrices(self, slots: list[Slot], decay: float, update: Update) -> None:
        shape = slots[0].parameter.shape
        own = list_own_matrices(self._mesh)
        # One matrix at a time, and no direction that another replica orthogonalises: there can be many replicas.
        directions = [self._advance_momentum(slot, update, is_own=place in own) for place, slot in enumerate(slots)]
        parts = [direction for direction in directions if direction is not None]
        scale = update.rate * _ADAMW_UPDATE_RMS * math.sqrt(max(shape))
        for rows, orthogonal in orthogonalize_parts(parts, shape, self._mesh):
            # The last matrices may be fewer than the ranks.
            for slot, direction in zip(slots, orthogonal, strict=False):
                value = slot.read_values(rows)
                changed = (value * (1 - update.rate * decay)).add_(direction[: len(value)], alpha=-scale)
                changed = changed if update.skip is None else torch.where(update.skip > 0, value, changed)
                slot.write_values(rows, changed, update.seed)

    def _advance_momentum(self, slot: Slot, update: Update, *, is_own: bool) -> torch.Tensor | None:
        """Update the momentum and return the direction to orthogonalise, if it is ours, in the iteration's format."""
        chunk = Chunk([slot], [slice(None)])
        (gradient,), (momentum,) = chunk.gradients, chunk.unpack("momentum")
        scaled = gradient if update.divide is None else gradient / update.divide
        changed = momentum.lerp(scaled, 1 - self._momentum)
        direction = scaled.lerp(changed, self._momentum).bfloat16() if is_own else None
        momentum.copy_(changed if update.skip is None else torch.where(update.skip > 0, momentum, changed))
        chunk.pack(update)
        return direction
