"""The all-reduce hooks of torch's FSDP: the sharded gradients of each unit are compressed between the replicas.

fully_shard gets the mesh of one replica only, so it reduces and scatters gradients within the replica and leaves the
sum over replicas to a hook. Before the last micro-batch, the hook keeps the gradients for itself and leaves zeros to be
accumulated: each unit is compressed once per step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from trainer.compression.compression import Compression, Part
from trainer.config.communication import CommunicationConfig


class ReplicaHooks:
    """The hooks of all sharded units of a model."""

    def __init__(self, model: nn.Module, settings: CommunicationConfig, group: Any, device: torch.device) -> None:
        self.is_last = True
        """Whether this is the last micro-batch of the step."""
        units = list(_list_units(model))
        self.compression = Compression(settings, group, [part for _, part in units], device)
        self._sums: dict[str, torch.Tensor] = {}
        for unit, part in units:
            unit.set_all_reduce_hook(lambda gradient, part=part: self._average(gradient, part))

    def _average(self, gradient: torch.Tensor, part: Part) -> None:
        """Average the gradients of a unit, which are flat, over the replicas."""
        if gradient.numel() != part.size:
            message = f"{part.name}: gradients of {gradient.numel()} elements out of {part.size}; compression needs a "
            raise RuntimeError(f"{message}gradient of every weight: freeze the others with requires_grad_(False)")
        earlier = self._sums.pop(part.name, None)
        if earlier is not None:
            gradient += earlier
        if self.is_last:
            self.compression.average(gradient, [part])
        else:
            self._sums[part.name] = gradient.clone()
            gradient.zero_()


def _list_units(model: nn.Module) -> Iterator[tuple[Any, Part]]:
    """Yield every sharded unit that is trained, with the name of its first module and the size of its gradients."""
    seen: set[int] = set()
    for name, module in model.named_modules():
        if not isinstance(module, FSDPModule):
            continue
        # Modules that are gathered together share the group. torch 2.11 has one per module at most; later versions may
        # have several, which set_all_reduce_hook rejects, and still have this name for the only one.
        group = module._get_fsdp_state()._fsdp_param_group
        if group is None or id(group) in seen:
            continue
        seen.add(id(group))
        trained = [param for param in group.fsdp_params if param.sharded_param.requires_grad]
        if trained:
            yield module, Part(name or "root", (sum(param.padded_sharded_param_size.numel() for param in trained),))
