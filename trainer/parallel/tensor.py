"""Each layer split over the tensor axis: which weight is cut how, kept outside the models."""

from __future__ import annotations

from typing import Any

from torch import nn

from trainer.parallel.blocks import is_tied
from trainer.parallel.mesh import Mesh


def split(model: nn.Module, mesh: Mesh) -> None:
    """Cut the weights of a decoder. Between the layers each rank holds a part of the sequence, so norms are split too.

    Works for Llama and GPT-2 alike: a rule for a layer that a model or a pipeline stage does not have is left out.
    """
    from torch.distributed.tensor.parallel import parallelize_module  # noqa: PLC0415

    tied = is_tied(model)
    axis = mesh.submesh("tensor")
    for block in _layers(model):
        parallelize_module(block, axis, _present(block, _block_plan()), src_data_rank=None)
    parallelize_module(model, axis, _present(model, _ends_plan()), src_data_rank=None)
    if tied:
        # Both are cut along the vocabulary, so one weight serves both again.
        ends: Any = model
        ends.head.weight = ends.embed.weight


def _layers(model: Any) -> list[nn.Module]:
    return list(model.layers.values())


def _block_plan() -> dict[str, Any]:
    from torch.distributed.tensor import Replicate, Shard  # noqa: PLC0415
    from torch.distributed.tensor.parallel import (  # noqa: PLC0415
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
    )

    def whole_sequence() -> PrepareModuleInput:
        return PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))

    return {
        "attention_norm": SequenceParallel(),
        "attention": whole_sequence(),
        "attention.q": ColwiseParallel(),
        "attention.k": ColwiseParallel(),
        "attention.v": ColwiseParallel(),
        "attention.o": RowwiseParallel(output_layouts=Shard(1)),
        "ffn_norm": SequenceParallel(),
        "ffn": whole_sequence(),
        "ffn.gate": ColwiseParallel(),
        "ffn.up": ColwiseParallel(),
        "ffn.down": RowwiseParallel(output_layouts=Shard(1)),
    }


def _ends_plan() -> dict[str, Any]:
    from torch.distributed.tensor import Replicate, Shard  # noqa: PLC0415
    from torch.distributed.tensor.parallel import (  # noqa: PLC0415
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
    )

    return {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }


def _present(module: nn.Module, plan: dict[str, Any]) -> dict[str, Any]:
    names = {name for name, part in module.named_modules() if part is not None}
    return {name: style for name, style in plan.items() if name in names}
