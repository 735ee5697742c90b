"""This rank's place in the layout and the process group of each axis."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from trainer.config.layout import DATA_AXES, EXPERT_AXES, Layout


class Mesh:
    """A torch DeviceMesh over the axes of the weights that are in use; an axis of one rank needs no process group.

    The ranks of the context axis are a part of shard or replicate, so sums over DATA_AXES include them.
    """

    def __init__(
        self, layout: Layout, rank: int, device: torch.device, *, uses_fully_shard: bool, hosts: Sequence[str] = ()
    ) -> None:
        self.layout = layout
        self.rank = rank
        self.device = device
        self.hosts = tuple(hosts) or ("localhost",) * layout.world_size
        """The host of each rank; without `hosts`, all ranks are on one."""
        self.dp_rank = layout.dp_rank(rank)
        self.weights = layout.merge_context(uses_fully_shard=uses_fully_shard)
        """Number of ranks along each axis of the DeviceMesh."""
        # fully_shard needs a shard axis even if it has a single rank; it then only applies precision and offload.
        self._dims = [
            (name, n) for name, n in self.weights.mesh_dims() if n > 1 or (uses_fully_shard and name == "shard")
        ]
        self._mesh: Any = self._connect() if self._dims else None
        self._context: Any = self._connect_context() if layout.context > 1 else None
        self._expert_mesh: Any = self._connect_experts() if layout.expert > 1 else None

    def without_replicas(self) -> Mesh:
        """Return this mesh as an engine sees it that averages nothing over the replicate axis."""
        alone = copy(self)
        alone.layout = replace(self.layout, replicate=1)
        alone.weights = replace(self.weights, replicate=1)
        alone._dims = [(name, n) for name, n in self._dims if name != "replicate"]
        return alone

    def submesh(self, *axes: str) -> Any:
        """Return the DeviceMesh of these axes, without those that are not in use."""
        return self._mesh[tuple(name for name, _ in self._dims if name in axes)]

    def expert_submesh(self, *axes: str) -> Any:
        """Return the DeviceMesh of these axes of expert parallelism."""
        return self._expert_mesh[axes]

    def group(self, axis: str) -> Any:
        """Return the process group of an axis, or None if this rank is alone on it."""
        if axis == "context":
            return self._context
        if axis in EXPERT_AXES:
            return self._expert_mesh.get_group(axis) if getattr(self.layout, axis) > 1 else None
        return self._mesh.get_group(axis) if getattr(self.weights, axis) > 1 else None

    def open_group(self, axis: str) -> Any:
        """Return another process group of an axis, for a thread of its own: its collectives need their own order."""
        return dist.new_subgroups_by_enumeration(self.weights.list_groups(axis), group_desc=f"thread_{axis}")[0]

    def coordinate(self, axis: str) -> int:
        """Return this rank's position on an axis."""
        return (self.layout if axis == "context" else self.weights).coordinate(self.rank, axis)

    def sum_over(self, value: torch.Tensor, *axes: str) -> torch.Tensor:
        """Sum over all ranks of these axes, in place; on a GPU, the host does not wait for it."""
        for axis in axes:
            group = self.group(axis)
            if group is not None:
                dist.all_reduce(value, group=group)
        return value

    def max_over_data(self, value: torch.Tensor) -> torch.Tensor:
        """Replace a value by the largest one of the ranks that hold different tokens, in place."""
        for axis in DATA_AXES:
            group = self.group(axis)
            if group is not None:
                dist.all_reduce(value, dist.ReduceOp.MAX, group=group)
        return value

    def mean_over_data(self, value: torch.Tensor) -> torch.Tensor:
        """Return the mean over the ranks that hold different tokens."""
        return self.sum_over(value.detach().clone(), *DATA_AXES) / self.weights.dp_size

    def broadcast_over_data(self, value: torch.Tensor) -> None:
        """Replace a value by that of the first rank with the same weights, in place."""
        for axis in DATA_AXES:
            group = self.group(axis)
            if group is not None:
                dist.broadcast(value, group=group, group_src=0)

    def _connect_experts(self) -> Any:
        """Divide the data-parallel ranks of each pipeline stage into groups of neighbours that share the experts."""
        from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415

        layout = self.layout
        sizes = (layout.pipeline, layout.expert_replicate, layout.expert)
        return init_device_mesh(self.device.type, sizes, mesh_dim_names=("pipeline", *EXPERT_AXES))

    def _connect(self) -> Any:
        # Start-up: a run on a single rank needs neither import.
        if not dist.is_initialized():
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            from torch._C._distributed_c10d import HashStore  # noqa: PLC0415

            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
        from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415

        names, sizes = zip(*self._dims, strict=True)
        return init_device_mesh(self.device.type, sizes, mesh_dim_names=names)

    def _connect_context(self) -> Any:
        groups = self.layout.list_groups("context")
        return dist.new_subgroups_by_enumeration(groups, group_desc="mesh_context")[0]
