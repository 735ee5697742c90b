"""Shard the weights of a model over the shard axis with torch's fully_shard, unit by unit."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.config.layout import DATA_AXES
from trainer.config.reduction import ZERO_PARAMETERS, zero_stage
from trainer.models.experts import Experts
from trainer.parallel.cast import is_cast_by_sharding
from trainer.parallel.engine import Recipe
from trainer.parallel.experts import divides_parts, list_copied_weights, list_wide_dims
from trainer.parallel.materialize import materialize, set_gradient_format
from trainer.parallel.mesh import Mesh
from trainer.parallel.modules import is_tied
from trainer.parallel.units import Units
from trainer.precision import DTYPES
from trainer.state_formats import StateFormats

# Start-up: torch.distributed.fsdp is imported only by runs that shard.
# ruff: noqa: PLC0415


def shard_units(model: nn.Module, units: Units, recipe: Recipe, mesh: Mesh) -> None:
    """Shard the model in place, part by part, so that only one part at a time is whole in memory."""
    if not recipe.uses_fully_shard(mesh.layout):
        return
    from torch.distributed.fsdp import fully_shard

    _check_gradients(recipe.formats)
    # torch warns about the views that tensor parallel layers return, but our models never write into them.
    warnings.filterwarnings("ignore", message=".*returned a view tensor")
    # If gradients are compressed between replicas, hooks do that, and fully_shard sees one replica only.
    axes = ("shard",) if recipe.compresses(mesh) else DATA_AXES
    options = {"mesh": mesh.submesh(*axes), **_make_policies(model, recipe, mesh)}
    # In a pipeline, every micro-batch would gather the weights again. Without resharding, a stage's whole weights stay
    # in memory during a step, as its whole gradients do anyway.
    reshard = zero_stage(recipe.parallel) == ZERO_PARAMETERS and recipe.parallel.pipeline == 1
    groups = group_modules(model, units)
    order: list[nn.Module] = []
    for group in groups:
        for part in group:
            materialize(part, mesh.device)
            set_gradient_format(part, recipe)
        spread = _list_divided_experts(group, recipe, mesh)
        for experts in spread:
            _shard_experts(experts, {**options, "reshard_after_forward": reshard}, mesh)
        order += [group[0], *spread]
        fully_shard(group, reshard_after_forward=reshard, **options, **_make_expert_options(model, mesh))
    materialize(model, mesh.device)
    set_gradient_format(model, recipe)
    # The root's own parameters are used at the end of forward and at the start of backward, so they stay gathered.
    fully_shard(model, reshard_after_forward=False, **options, **_make_expert_options(model, mesh))
    _set_prefetch(order, recipe.parallel.prefetch)


def _check_gradients(formats: StateFormats) -> None:
    """Check that fully_shard stores gradients in their format; that of torch 2.11 knows only the format of weights."""
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    if formats.gradients == formats.weights or hasattr(FSDPParam, "unsharded_grad_dtype"):
        return
    message = f"{formats.gradients}, but fully_shard of torch {torch.__version__} stores gradients in the format of "
    fix = f"set it to {formats.weights}, or use torch 2.15"
    raise ConfigError([ConfigProblem("optimizer.gradients", f"{message}the weights, {formats.weights}", fix)])


def group_modules(model: nn.Module, units: Units) -> list[list[nn.Module]]:
    """Return the parts that are gathered together, in the order of use; tied weights stay with the root."""
    layers = [[unit.module] for unit in units.separable]
    # A model without a head may use the weight of its embedding instead, which must then stay gathered.
    if is_tied(model) or not hasattr(model, "head"):
        return layers
    in_layers = {id(part) for unit in units.layers for part in unit.module.modules()}
    ends = {name: getattr(model, name, None) for name in ("embed", "positions", "norm", "head")}
    parts = {name: part for name, part in ends.items() if part is not None and _is_leaf(part, in_layers)}
    first = [parts[name] for name in ("embed", "positions") if name in parts]
    last = [parts[name] for name in ("norm", "head") if name in parts]
    return [group for group in (first, *layers, last) if group]


def _is_leaf(part: Any, in_layers: set[int]) -> bool:
    """Return whether this is a single operation outside of all units."""
    return isinstance(part, nn.Module) and not list(part.children()) and id(part) not in in_layers


def _make_policies(model: nn.Module, recipe: Recipe, mesh: Mesh) -> dict[str, Any]:
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    policies: dict[str, Any] = {}
    if recipe.parallel.offload:
        policies["offload_policy"] = CPUOffloadPolicy()
    formats = recipe.formats
    products = DTYPES[formats.products] if is_cast_by_sharding(model, recipe, mesh) else None
    if products is not None or not formats.reduced == formats.gradients == formats.weights:
        policies["mp_policy"] = MixedPrecisionPolicy(param_dtype=products, reduce_dtype=DTYPES[formats.reduced])
    return policies


def _list_divided_experts(group: list[nn.Module], recipe: Recipe, mesh: Mesh) -> list[Experts]:
    """Return the experts of expert groups that divide their parts further."""
    if mesh.layout.expert == 1:
        return []
    experts = [part for member in group for part in member.modules() if isinstance(part, Experts)]
    return [part for part in experts if divides_parts(part, recipe, mesh)]


def _shard_experts(experts: Experts, options: dict[str, Any], mesh: Mesh) -> None:
    """Shard the weights of experts over the groups that hold the same experts."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    groups, dims = mesh.expert_submesh("expert_replicate"), list_wide_dims(experts)
    fully_shard(experts, **{**options, "mesh": groups}, shard_placement_fn=lambda weight: Shard(dims[weight]))


def _make_expert_options(model: nn.Module, mesh: Mesh) -> dict[str, Any]:
    """Return the options for a mixture of experts: leave copies in expert groups alone, and shard the others evenly.

    If the ranks do not divide the experts, the weights of each expert are sharded instead. Otherwise some ranks would
    hold one expert more than others, or none, and all of them would send as much.
    """
    from torch.distributed.tensor import Shard

    ranks, dims = mesh.weights.shard, list_wide_dims(model)
    # Tensor parallelism may have split the same dimension.
    parts = ranks * mesh.layout.tensor
    uneven = {weight: dim for weight, dim in dims.items() if weight.shape[0] % ranks and weight.shape[dim] % parts == 0}
    if not dims:
        return {}
    return {
        "ignored_params": list_copied_weights(model),
        "shard_placement_fn": lambda weight: Shard(uneven[weight]) if weight in uneven else None,
    }


def _set_prefetch(parts: list[Any], ahead: int) -> None:
    """Gather the next parts while one is computed.

    By default, backward prefetches the part that ran before this one in forward; for the first part, that is the last
    part of the previous micro-batch. To prefetch nothing, the first part is set to prefetch itself.
    """
    for index, part in enumerate(parts):
        part.set_modules_to_forward_prefetch(parts[index + 1 : index + 1 + ahead])
        part.set_modules_to_backward_prefetch(parts[max(0, index - ahead) : index][::-1] or [part])
