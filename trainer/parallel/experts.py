"""Expert parallelism: data-parallel ranks share the experts of a layer, and tokens travel to them and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trainer.config.layout import EXPERT_AXES
from trainer.models.experts import ExpertFunction, ExpertLinear, Experts, permute
from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.units import Units

# Start-up: torch.distributed.tensor is imported only by runs that spread experts.
# ruff: noqa: PLC0415


def spread_experts(model: nn.Module, _units: Units, recipe: Recipe, mesh: Mesh) -> None:
    """Leave each rank of an expert group its part of the experts.

    Other groups hold the same parts. With fully_shard, which comes later, they divide them further.
    """
    if mesh.layout.expert == 1:
        return
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    for part in model.modules():
        if not isinstance(part, Experts):
            continue
        part.exchange = Exchange(mesh)
        is_divided = divides_parts(part, recipe, mesh)
        axes, placements = (("expert",), [Shard(0)]) if is_divided else (EXPERT_AXES, [Replicate(), Shard(0)])
        for linear in part.children():
            for name, weight in list(linear.named_parameters()):
                spread = distribute_tensor(weight.detach(), mesh.expert_submesh(*axes), placements, src_data_rank=None)
                linear.register_parameter(name, nn.Parameter(spread, requires_grad=weight.requires_grad))


def divides_parts(experts: Experts, recipe: Recipe, mesh: Mesh) -> bool:
    """Return whether the groups that hold the same experts divide their weights with fully_shard."""
    widths = [weight.shape[dim] for weight, dim in list_wide_dims(experts).items()]
    return recipe.uses_fully_shard(mesh.layout) and all(width % mesh.layout.expert_replicate == 0 for width in widths)


def list_wide_dims(model: nn.Module) -> dict[nn.Parameter, int]:
    """Return, for each weight of experts, the dimension along which ranks can divide the weights of each expert."""
    linears = [part for part in model.modules() if isinstance(part, ExpertLinear)]
    return {getattr(linear, name): dim for linear in linears for name, dim in linear.wide_dims.items()}


def list_copied_weights(model: nn.Module) -> set[nn.Parameter]:
    """Return the weights of which all groups hold copies: DDP and fully_shard leave them alone."""
    return {weight for weight in model.parameters() if is_copied(weight)}


def is_spread(weight: Any) -> bool:
    """Return whether expert parallelism spreads a weight."""
    device_mesh = getattr(weight, "device_mesh", None)
    return device_mesh is not None and device_mesh.mesh_dim_names == EXPERT_AXES


def is_copied(weight: Any) -> bool:
    """Return whether expert parallelism spreads a weight, with a copy in each group."""
    return is_spread(weight) and weight.placements[0].is_replicate()


@torch.no_grad()
def average_expert_gradients(weights: Iterable[nn.Parameter], mesh: Mesh) -> None:
    """Average the gradients of spread experts over all ranks with different tokens, after the backward passes.

    Tokens of all ranks of a group have already added to them, so only the groups are left to average over. Where the
    groups divide the weights, fully_shard has done that.
    """
    for weight in weights:
        gradient: Any = weight.grad
        if gradient is not None and is_spread(weight):
            local = gradient.to_local().div_(mesh.layout.expert)
            if is_copied(weight):
                mesh.sum_over(local, "expert_replicate").div_(mesh.layout.expert_replicate)


class Exchange:
    """The way of rows to the ranks that hold their experts, and of the outputs back."""

    def __init__(self, mesh: Mesh) -> None:
        self._ranks = mesh.layout.expert
        self._group = mesh.group("expert")

    def run(self, compute: ExpertFunction, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Compute rows that are sorted by expert on the ranks of the experts, and return the outputs in their order.

        The host waits once, for the numbers of rows to send and to receive.
        """
        counts = counts.view(self._ranks, -1)
        # By sender and expert of this rank.
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts, group=self._group)
        sent_sizes, received_sizes = torch.stack((counts.sum(1), received.sum(1))).tolist()
        arrived = _AllToAll.apply(rows, sent_sizes, received_sizes, self._group)
        order = _sort_by_expert(received, len(arrived))
        inverse = order.argsort()
        outputs = compute(permute(arrived, order, inverse), received.sum(0))
        returned: torch.Tensor = _AllToAll.apply(
            permute(outputs, inverse, order), received_sizes, sent_sizes, self._group
        )
        return returned


class _AllToAll(torch.autograd.Function):
    """Send consecutive rows to each rank of a group; the backward pass sends the gradients back."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, sent: list[int], received: list[int], group: Any) -> torch.Tensor:
        ctx.sizes, ctx.group = (sent, received), group
        return _exchange_rows(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        sent, received = ctx.sizes
        return _exchange_rows(gradients[0], received, sent, ctx.group), None, None, None


def _exchange_rows(rows: torch.Tensor, sent: list[int], received: list[int], group: Any) -> torch.Tensor:
    arrived = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(arrived, rows.contiguous(), received, sent, group=group)
    return arrived


def _sort_by_expert(received: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the order by expert of rows that came sorted by sender and then by expert."""
    ranks, experts = received.shape
    numbers = torch.arange(experts, device=received.device).repeat(ranks)
    return numbers.repeat_interleave(received.flatten(), output_size=rows).argsort(stable=True)
