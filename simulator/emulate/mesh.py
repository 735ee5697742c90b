"""The trainer's mesh for ranks that take turns in one process."""

from __future__ import annotations

from typing import Any

import torch

from simulator.emulate.group import Group
from trainer.config.layout import Layout
from trainer.parallel.mesh import Mesh


class VirtualMesh(Mesh):
    """`rank` and `dp_rank` change with whose turn it is."""

    def __init__(self, layout: Layout, group: Group, device: torch.device) -> None:
        self.virtual = group
        super().__init__(layout, 0, device, is_sharded=False)

    def turn_to(self, rank: int) -> None:
        self.rank, self.dp_rank = rank, self.layout.dp_rank(rank)
        self.virtual.begin(rank)

    def group(self, axis: str) -> Any:
        return self.virtual if getattr(self.layout, axis) > 1 else None

    def _connect(self) -> None:
        """There is nobody to connect to."""
