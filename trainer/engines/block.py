"""A block: parameters that ranks share, in one flat tensor, and gather and free together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.layout import DATA_AXES
from trainer.engines.block_order import ALL_GATHER, Turn
from trainer.engines.flat_layout import count_values, plan_parts
from trainer.parallel.mesh import Mesh

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed
# Vectorized kernels of cuBLAS, Triton and NCCL need it; torch's allocators align whole tensors to at least as much.
ALIGNED_BYTES = 16


@dataclass(frozen=True)
class Owned:
    """A parameter of a block, and the modules that hold it with the name of the attribute."""

    parameter: nn.Parameter
    users: list[tuple[nn.Module, str]]


@dataclass(frozen=True)
class _Gather:
    """An all-gather that is running. What it sends lives as long: it is the shard, or a part of what it receives."""

    work: Any
    received: torch.Tensor


class Block:
    """Parameters of some modules.

    Between uses, the modules hold DTensors: views of `shard`, one flat tensor with this rank's rows of each parameter.
    While they run, they hold whole parameters: views of another flat tensor, whose memory exists only while it is
    needed. Autograd saves these views for the backward pass, so they must stay the same tensors: their memory is freed,
    and allocated and filled again, without their knowledge.
    """

    def __init__(  # noqa: PLR0913 - what a block consists of
        self,
        modules: list[nn.Module],
        parameters: list[Owned],
        turn: Turn,
        mesh: Mesh,
        dtype: torch.dtype | None,
        *,
        is_offloaded: bool,
    ) -> None:
        """Replace the parameters of the modules by DTensors; whole ones have `dtype`, or else the same type.

        If it `is_offloaded`, the shard is in the host's memory, and a copy of it is on the device while it is gathered.
        """
        self.modules = modules
        self.turn = turn
        self.is_whole = False
        self.calls = 0
        """Calls of the modules in this pass whose backward pass has not ended."""
        self.is_in_graph = False
        """Whether this pass will run their backward pass; not if what they have computed needs no gradient."""
        self.is_in_backward = False
        self._users = [owned.users for owned in parameters]
        self._group, self._ranks, self._rank = mesh.group("shard"), mesh.weights.shard, mesh.coordinate("shard")
        values, rank = [owned.parameter for owned in parameters], self._rank
        stored_dtype = values[0].dtype if values else torch.float32
        self._dtype = dtype or stored_dtype
        align = ALIGNED_BYTES // min(stored_dtype.itemsize, self._dtype.itemsize)
        self._parts = plan_parts([value.shape for value in values], self._ranks, align)
        self._device, self._is_offloaded = mesh.device, is_offloaded
        # The device can read pinned memory while the host continues.
        home = {"device": "cpu", "pin_memory": True} if is_offloaded else {"device": mesh.device}
        self.shard = torch.zeros(count_values(self._parts, align), dtype=stored_dtype, **home)
        sharing = RowSharing(mesh)
        self.sharded = [
            nn.Parameter(sharing.join(part.view_shard(self.shard, rank), value.shape), value.requires_grad)
            for value, part in zip(values, self._parts, strict=True)
        ]
        for value, part in zip(values, self._parts, strict=True):
            if not value.is_meta:
                part.view_shard(self.shard, rank).copy_(value.detach()[part.slice_rows(rank)])
        flat = torch.empty(self._ranks * self.shard.numel(), dtype=self._dtype, device=mesh.device)
        self.whole = [
            nn.Parameter(part.view_whole(flat, self._ranks), value.requires_grad)
            for value, part in zip(values, self._parts, strict=True)
        ]
        # Autograd counts changes of tensors that it has saved. Those through `data` are not counted.
        self._places = [part.view_shares(flat.data, self._ranks) for part in self._parts]
        self._memory, self._bytes = flat.untyped_storage(), flat.nbytes
        self._memory.resize_(0)
        self._gather: _Gather | None = None
        self._set_parameters(self.sharded)

    def begin_gather(self) -> None:
        """Start to collect the shards of all ranks, if the parameters are neither whole nor on their way."""
        if self.is_whole or self._gather is not None or self._group is None or not self._parts:
            return
        self.turn.compare(self._group, ALL_GATHER)
        size = self.shard.numel()
        received = torch.empty(self._ranks * size, dtype=self._dtype, device=self._device)
        sent = self.shard
        if sent.dtype != self._dtype or self._is_offloaded:
            sent = received[self._rank * size :][:size].copy_(sent, non_blocking=True)
        work = dist.all_gather_into_tensor(received, sent, group=self._group, async_op=True)
        self._gather = _Gather(work, received)

    @torch.no_grad()
    def gather(self) -> None:
        """Give the modules whole parameters."""
        if self.is_whole or not self._parts:
            return
        self.begin_gather()
        received = self.shard.to(self._device, non_blocking=True) if self._gather is None else self._wait(self._gather)
        self._memory.resize_(self._bytes)
        rows = received.view(self._ranks, -1)
        torch._foreach_copy_(self._places, [part.view_columns(rows) for part in self._parts])
        self._set_parameters(self.whole)
        self.is_whole = True

    def free(self) -> None:
        """Give the modules DTensors again, and free the memory of whole parameters."""
        if self._gather is not None:
            self._wait(self._gather)
        if self.is_whole:
            self._set_parameters(self.sharded)
            self._memory.resize_(0)
            self.is_whole = False

    def _wait(self, gather: _Gather) -> torch.Tensor:
        self._gather = None
        with self.turn.name_errors(ALL_GATHER):
            gather.work.wait()
        return gather.received

    def _set_parameters(self, parameters: list[nn.Parameter]) -> None:
        for users, parameter in zip(self._users, parameters, strict=True):
            for module, name in users:
                module._parameters[name] = parameter


class RowSharing:
    """The way in which ranks share tensors: rows over the shard axis, copies over the replicate axis."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh.submesh(*DATA_AXES)
        self._places = [Shard(0) if name == "shard" else Replicate() for name in self._mesh.mesh_dim_names]

    def join(self, rows: torch.Tensor, shape: Any) -> torch.Tensor:
        """Return the DTensor with this shape of which this rank has some rows."""
        stride = torch.empty(shape, device="meta").stride()
        if rows.device.type != self._mesh.device_type:
            # `from_local` would move offloaded rows to the device.
            meta = TensorMeta(torch.Size(shape), stride, rows.dtype)
            return DTensor(rows, DTensorSpec(self._mesh, tuple(self._places), meta), requires_grad=False)
        joined: torch.Tensor = DTensor.from_local(
            rows, self._mesh, self._places, run_check=False, shape=shape, stride=stride
        )
        return joined


def list_parameters(model: nn.Module, groups: list[list[nn.Module]]) -> list[list[Owned]]:
    """Return, for each group of modules, the parameters of all modules inside that no earlier group has."""
    owned: dict[nn.Parameter, Owned] = {}
    for name, part in model.named_modules():
        for attribute, parameter in part._parameters.items():
            if parameter is not None:
                _check_shape(f"{name}.{attribute}".lstrip("."), parameter)
                owned.setdefault(parameter, Owned(parameter, [])).users.append((part, attribute))
    lists = []
    for group in groups:
        parameters = [value for module in group for value in module.parameters()]
        lists.append([owned.pop(value) for value in parameters if value in owned])
    return lists


def _check_shape(name: str, parameter: nn.Parameter) -> None:
    if not parameter.dim() or not parameter.numel():
        message = f"{name} has the shape {list(parameter.shape)}, and ranks share the rows of parameters"
        fix = "give it a dimension and a value, or set parallel.strategy to ddp"
        raise ConfigError([ConfigProblem("model", message, fix)])
