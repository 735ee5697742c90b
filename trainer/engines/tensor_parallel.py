"""Tensor parallelism: the matrices of a layer are split over ranks, which all compute every token.

Attention and feed-forward layers are two products with something in between that treats parts of the columns on their
own, heads or single columns: Y = f(X A) B. Let rank r have a block of the columns of A, and the same block of the rows
of B. Then f(X A_r) is a block of the columns of f(X A), and Y is the sum of f(X A_r) B_r over the ranks:

    X --copy--> X A_r --> f --> f(X A_r) B_r --sum--> Y
        column layers              row layer

So a layer needs no message inside, and one all-reduce at its end. The gradient takes the same way back. Each rank has
the gradient of Y, and gets that of its own copy of X; the gradient of X is the sum of these. The two functions at the
ends are conjugate, each is what the other one does in the backward pass:

- `copy_to_ranks` returns its input, and sums the gradient over the ranks (all-reduce);
- `sum_over_ranks` sums its input over the ranks (all-reduce), and returns the gradient.

torch stores the weight of a linear layer as (outputs, inputs). Column layers (`attention.q`, `.k`, `.v`, `ffn.gate`,
`.up`) have rows of it and of the bias, row layers (`attention.o`, `ffn.down`) have columns, and the whole bias, which
is added after the sum. The parameters that the trainer sees are DTensors, so initial values, clipping, the optimizer
and checkpoints need not know. Weights that normalise heads (`q_norm`, `k_norm`) are whole, but each rank uses them for
its own heads only, so their gradients are summed too: they pass through `copy_to_ranks`.

Everything between the layers is the same on all ranks: residual stream, norms, embedding, head and loss. All ranks get
the same bits from an all-reduce, so their copies of these weights stay equal.

Shoeybi et al., Megatron-LM, arXiv:1909.08053.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.engines.lost_peer import name_peers
from trainer.parallel.mesh import Mesh

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed

_COLUMN_LAYERS = ("attention.q", "attention.k", "attention.v", "ffn.gate", "ffn.up")
_ROW_LAYERS = ("attention.o", "ffn.down")
_HEAD_NORMS = ("attention.q_norm", "attention.k_norm")


def split_blocks(model: Any, mesh: Mesh) -> None:
    """Split the linear layers in all blocks of a decoder, in place."""
    axis, group = mesh.submesh("tensor"), mesh.group("tensor")
    for number, block in model.layers.items():
        parts = dict(block.named_modules())
        _check_layers(f"layers.{number}", parts, mesh.layout.tensor)
        for name in ("attention", "ffn"):
            parts[name].register_forward_pre_hook(partial(_copy_input, group))
        for name in _COLUMN_LAYERS:
            if name in parts:
                _split_parameters(parts[name], axis, {"weight": Shard(0), "bias": Shard(0)})
                parts[name].forward = partial(_multiply_columns, parts[name])
        for name in _ROW_LAYERS:
            _split_parameters(parts[name], axis, {"weight": Shard(1), "bias": Replicate()})
            parts[name].forward = partial(_multiply_rows, parts[name], group)
        for name in _HEAD_NORMS:
            if name in parts:
                parts[name].forward = partial(_normalize_heads, parts[name], group)


class _CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: torch.Tensor, group: Any) -> torch.Tensor:
        context.group = group
        return values.view_as(values)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        return _sum(gradients[0], context.group), None


class _SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, values: torch.Tensor, group: Any) -> torch.Tensor:
        return _sum(values, group)

    @staticmethod
    def backward(_context: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


def _sum(values: torch.Tensor, group: Any) -> torch.Tensor:
    total = values.clone(memory_format=torch.contiguous_format)
    with name_peers(group, "sum of a tensor parallel layer"):
        dist.all_reduce(total, group=group)
    return total


def copy_to_ranks(values: torch.Tensor, group: Any) -> torch.Tensor:
    """Return values that all ranks have; their gradient is the sum over the ranks."""
    copied: torch.Tensor = _CopyToRanks.apply(values, group)
    return copied


def sum_over_ranks(values: torch.Tensor, group: Any) -> torch.Tensor:
    """Return the sum of the values of all ranks; the gradient of each is that of the sum."""
    total: torch.Tensor = _SumOverRanks.apply(values, group)
    return total


def _copy_input(group: Any, _layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return copy_to_ranks(args[0], group), *args[1:]


def _multiply_columns(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, layer.weight.to_local(), None if layer.bias is None else layer.bias.to_local())


def _multiply_rows(layer: Any, group: Any, x: torch.Tensor) -> torch.Tensor:
    total = sum_over_ranks(F.linear(x, layer.weight.to_local()), group)
    return total if layer.bias is None else total + layer.bias.to_local().to(total.dtype)


def _normalize_heads(norm: Any, group: Any, x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, norm.normalized_shape, copy_to_ranks(norm.weight, group), norm.eps)


def _check_layers(block: str, parts: dict[str, nn.Module], ranks: int) -> None:
    """Raise ConfigError unless the layers of a block are plain linear layers that the ranks divide."""
    for name in (*_COLUMN_LAYERS, *_ROW_LAYERS):
        layer, obstacle = parts.get(name), ""
        if layer is None:
            obstacle = "there is no such layer" if name in _ROW_LAYERS else ""
        elif type(layer) is not nn.Linear:
            obstacle = f"it is a {type(layer).__name__}, not a plain nn.Linear"
        elif (layer.in_features if name in _ROW_LAYERS else layer.out_features) % ranks:
            obstacle = f"its weight {list(layer.weight.shape)} cannot be divided"
        if obstacle:
            message = f"{ranks} ranks cannot split {block}.{name} with parallel.engine=muster: {obstacle}"
            raise ConfigError([ConfigProblem("parallel.tensor", message, "set it to 1, or parallel.engine to torch")])


def _split_parameters(layer: nn.Module, axis: Any, places: dict[str, Any]) -> None:
    """Replace the parameters of a layer by DTensors of which this rank has a part; nothing is sent."""
    for name, value in list(layer.named_parameters(recurse=False)):
        split = distribute_tensor(value.detach(), axis, [places[name]], src_data_rank=None)
        layer.register_parameter(name, nn.Parameter(split, requires_grad=value.requires_grad))
