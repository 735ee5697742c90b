"""Sharded data parallelism: parameters, gradients and optimizer state split over the shard axis (ZeRO, HSDP)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from torch import nn

from trainer.config.reduction import ZERO_PARAMETERS, choose_deferred_reduction, zero_stage
from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.plain import PlainEngine
from trainer.parallel.units import Units

if TYPE_CHECKING:
    from trainer.compression.fsdp_hook import ReplicaHooks

# Start-up: the modules for compressed gradients are imported only by runs that compress them.
# ruff: noqa: PLC0415


class FsdpEngine(PlainEngine):
    """The engine in which every rank runs its share of the batch and gathers the parameters unit by unit."""

    def __init__(self, model: nn.Module, units: Units, recipe: Recipe, mesh: Mesh, choices: list[str]) -> None:
        super().__init__(model, units, recipe, mesh, choices)
        self._stays_gathered = zero_stage(recipe.parallel) < ZERO_PARAMETERS
        self._hooks: ReplicaHooks | None = None
        if recipe.compresses(mesh):
            from trainer.compression.fsdp_hook import ReplicaHooks

            self._hooks = ReplicaHooks(model, recipe.communication, mesh.group("replicate"), mesh.device)
            self.compression = self._hooks.compression
        self._deferred, reason = choose_deferred_reduction(
            recipe.parallel, mesh.layout.replicate, recipe.formats.gradients
        )
        if reason:
            choices.append(f"accumulate: {reason}")

    def differentiated_parameters(self) -> dict[str, nn.Parameter]:
        from torch.distributed.fsdp import FSDPModule

        names = {value: name for name, value in self._parameters.items()}
        whole: dict[str, nn.Parameter] = {}
        for module in self.modules[0].modules():
            group = module._get_fsdp_state()._fsdp_param_group if isinstance(module, FSDPModule) else None
            for sharded in group.fsdp_params if group is not None else ():
                # A whole parameter exists once it has been gathered, and then stays the same tensor.
                if not hasattr(sharded, "_unsharded_param"):
                    module.unshard()
                    module.reshard()
                whole[names[sharded.sharded_param]] = sharded._unsharded_param
        return whole

    def around(self, index: int, count: int) -> AbstractContextManager[None]:
        model: Any = self.modules[0]
        is_last = index == count - 1
        model.set_is_last_backward(is_last)
        if self._stays_gathered:
            model.set_reshard_after_backward(is_last)
        if self._deferred == "all":
            model.set_requires_gradient_sync(is_last)
        elif self._hooks is not None:
            self._hooks.is_last = is_last
        elif self._deferred == "replicas":
            model.set_requires_all_reduce(is_last)
        return nullcontext()
