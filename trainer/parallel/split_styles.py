"""Styles for torch's parallelize_module: layers with LoRA, a head with an objective, and mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from trainer.models.lora import LoraLinear

_COLUMN_DIMS = {"weight": 0, "bias": 0, "lora_a": None, "lora_b": 0}
_ROW_DIMS = {"weight": 1, "bias": None, "lora_a": 1, "lora_b": None}


class SplitColumns(ColwiseParallel):
    """A style that splits the outputs of a linear layer; of LoRA's matrices, it splits B."""

    def _partition_linear_fn(self, name: str, module: nn.Module, device_mesh: Any) -> None:  # noqa: ARG002
        _split_parameters(module, device_mesh, _COLUMN_DIMS)


class SplitRows(RowwiseParallel):
    """A style that splits the inputs of a linear layer; of LoRA's matrices, it splits A."""

    def _partition_linear_fn(self, name: str, module: nn.Module, device_mesh: Any) -> None:  # noqa: ARG002
        _split_parameters(module, device_mesh, _ROW_DIMS)


class SplitHead(SplitColumns):
    """A style that splits the head along the vocabulary and gathers its logits.

    The value of an objective, which works on the split logits, is an ordinary tensor and returned as it is.
    """

    def __init__(self) -> None:
        super().__init__(input_layouts=Shard(1), output_layouts=Replicate())

    @staticmethod
    def _prepare_output_fn(layouts: Any, use_local_output: bool, module: Any, outputs: Any, mesh: Any) -> Any:
        if not isinstance(outputs, DTensor):
            return outputs
        return ColwiseParallel._prepare_output_fn(layouts, use_local_output, module, outputs, mesh)


class SplitExperts(ParallelStyle):
    """A style that splits the hidden size of all experts of a mixture.

    All ranks route all tokens. The outputs of the experts are sums over the ranks, and so are the gradients of the
    tokens and of the router. Inputs and outputs are parts of sequences, as they are between all layers.
    """

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        mixture: Any = module
        experts, ranks = mixture.experts, device_mesh.size()
        _split_parameters(mixture.router, device_mesh, {"weight": None})
        for linear in (experts.gate, experts.up):
            _split_parameters(linear, device_mesh, _skip_experts(_COLUMN_DIMS))
            inputs, outputs, *others = linear.widths
            linear.widths = (inputs, outputs // ranks, *others)
        _split_parameters(experts.down, device_mesh, _skip_experts(_ROW_DIMS))
        inputs, outputs, *others = experts.down.widths
        experts.down.widths = (inputs // ranks, outputs, *others)
        # Not hooks: the compiler leaves out the forward of a mixture, but would trace its hooks.
        mixture.forward = partial(_run_split, mixture.forward, device_mesh)
        return module


def _run_split(forward: Callable[[torch.Tensor], torch.Tensor], mesh: Any, x: Any) -> torch.Tensor:
    """Run a mixture on whole sequences, of which each rank has a part, and return this rank's part of the outputs."""
    parts = x if isinstance(x, DTensor) else DTensor.from_local(x, mesh, [Shard(1)], run_check=False)
    outputs = forward(_take_part(parts.redistribute(placements=[Replicate()])))
    sums: Any = DTensor.from_local(outputs, mesh, [Partial()], run_check=False)
    local: torch.Tensor = sums.redistribute(placements=[Shard(1)]).to_local()
    return local


def _split_parameters(module: nn.Module, mesh: Any, dims: Mapping[str, int | None]) -> None:
    for name, parameter in list(module.named_parameters(recurse=False)):
        dim = dims[name]
        placement = Replicate() if dim is None else Shard(dim)
        split = distribute_tensor(parameter.detach(), mesh, [placement], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(split, requires_grad=parameter.requires_grad))
    if isinstance(module, LoraLinear):
        module.multiply = _multiply_parts


def _skip_experts(dims: Mapping[str, int | None]) -> dict[str, int | None]:
    """Return the same dimensions of weights whose first dimension is that of the experts."""
    return {name: None if dim is None else dim + 1 for name, dim in dims.items()}


def _multiply_parts(x: Any, a: Any, b: Any) -> Any:
    """Return x A^T B^T of split matrices, laid out like the output of the layer's own weight.

    Each rank multiplies its parts without communication, which DTensor's own products would need: they do not accept
    the sums that are still spread over the ranks. With A split along the inputs, the result is such a sum. With B split
    along the outputs, it is a part of the outputs.
    """
    change = F.linear(F.linear(_take_part(x), _take_part(a)), _take_part(b))
    is_part = b.placements[0].is_shard()
    return DTensor.from_local(change, x.device_mesh, [Shard(-1) if is_part else Partial()], run_check=False)


def _take_part(tensor: DTensor) -> torch.Tensor:
    """Return this rank's part of a tensor on the tensor axis alone, as `take_local_part` does.

    The compiler can trace it: it asks neither for the class of the tensor nor for the names of the axes.
    """
    placements = [Partial() if placement.is_replicate() else placement for placement in tensor.placements]
    return tensor.to_local(grad_placements=placements)
