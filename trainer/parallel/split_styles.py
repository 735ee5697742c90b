"""Styles for torch's parallelize_module that also split the layers of LoRA and a head with an objective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

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


def _split_parameters(module: nn.Module, mesh: Any, dims: Mapping[str, int | None]) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        dim = dims[name]
        placement = Replicate() if dim is None else Shard(dim)
        split = distribute_tensor(parameter, mesh, [placement], src_data_rank=None)
        module.register_parameter(name, nn.Parameter(split, requires_grad=parameter.requires_grad))
    if isinstance(module, LoraLinear):
        module.multiply = _multiply_parts


def _multiply_parts(x: Any, a: Any, b: Any) -> Any:
    """Return x A^T B^T of split matrices, laid out like the output of the layer's own weight.

    Each rank multiplies its parts without communication, which DTensor's own products would need: they do not accept
    the sums that are still spread over the ranks. With A split along the inputs, the result is such a sum. With B split
    along the outputs, it is a part of the outputs.
    """
    change = F.linear(F.linear(_take_part(x), _take_part(a)), _take_part(b))
    is_part = b.placements[0].is_shard()
    return DTensor.from_local(change, x.device_mesh, [Shard(-1) if is_part else Partial()], run_check=False)


def _take_part(tensor: Any) -> torch.Tensor:
    """Return this rank's part; what all ranks hold gets a gradient that has to be summed over them."""
    placements = [Partial() if placement.is_replicate() else placement for placement in tensor.placements]
    local: torch.Tensor = tensor.to_local(grad_placements=placements)
    return local
