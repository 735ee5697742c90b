"""This rank's place in the layout and the process group of each axis."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from trainer.config.layout import Layout


class Mesh:
    """A torch DeviceMesh over the axes that are in use; an axis of one rank needs no process group."""

    def __init__(self, layout: Layout, rank: int, device: torch.device, *, is_sharded: bool) -> None:
        self.layout = layout
        self.rank = rank
        self.device = device
        self.dp_rank = layout.dp_rank(rank)
        # fully_shard needs a shard axis even if it has a single rank; it then only applies precision and offload.
        self._dims = [(name, n) for name, n in layout.mesh_dims() if n > 1 or (is_sharded and name == "shard")]
        self._mesh: Any = self._connect() if self._dims else None

    def submesh(self, *axes: str) -> Any:
        """Return the DeviceMesh of these axes, without those that are not in use."""
        return self._mesh[tuple(name for name, _ in self._dims if name in axes)]

    def group(self, axis: str) -> Any:
        """Return the process group of an axis, or None if this rank is alone on it."""
        return self._mesh.get_group(axis) if getattr(self.layout, axis) > 1 else None

    def coordinate(self, axis: str) -> int:
        """Return this rank's position on an axis."""
        return self.layout.coordinate(self.rank, axis)

    def sum_over(self, value: torch.Tensor, *axes: str) -> torch.Tensor:
        """Sum over all ranks of these axes, in place; on a GPU, the host does not wait for it."""
        for axis in axes:
            group = self.group(axis)
            if group is not None:
                dist.all_reduce(value, group=group)
        return value

    def mean_over_data(self, value: torch.Tensor) -> torch.Tensor:
        """Return the mean over the data-parallel ranks."""
        return self.sum_over(value.detach().clone(), "replicate", "shard") / self.layout.dp_size

    def broadcast_over_data(self, value: torch.Tensor) -> None:
        """Replace a value by that of the first data-parallel rank, in place."""
        for axis in ("replicate", "shard"):
            group = self.group(axis)
            if group is not None:
                dist.broadcast(value, group=group, group_src=0)

    def _connect(self) -> Any:
        # Start-up: a run on a single rank needs neither import.
        if not dist.is_initialized():
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            from torch._C._distributed_c10d import HashStore  # noqa: PLC0415

            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415

        names, sizes = zip(*self._dims, strict=True)
        return init_device_mesh(self.device.type, sizes, mesh_dim_names=names)
