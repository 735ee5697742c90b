"""Tensor parallelism: how each weight of a layer is split, defined outside the models."""

from __future__ import annotations

from typing import Any

from torch import nn

from trainer.models.experts import MixtureOfExperts
from trainer.parallel.engine import Recipe
from trainer.parallel.mesh import Mesh
from trainer.parallel.modules import is_tied
from trainer.parallel.units import Units

# Start-up: torch.distributed.tensor is imported only by runs that split layers.
# ruff: noqa: PLC0415


def split_layers(model: nn.Module, _units: Units, recipe: Recipe, mesh: Mesh) -> None:
    """Split the weights of a decoder over the tensor axis, with the code of the engine.

    With torch's, each rank holds a part of the sequence between the layers, so norms are split too. The same rules
    serve every decoder: a rule for a layer that a model or a pipeline stage does not have is ignored.
    """
    if mesh.layout.tensor == 1:
        return
    if recipe.parallel.engine == "muster":
        from trainer.engines.tensor_parallel import split_blocks

        split_blocks(model, mesh)
        return
    from torch.distributed.tensor.parallel import parallelize_module

    tied = is_tied(model)
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    axis = mesh.submesh("tensor")
    for block in _list_layers(model):
        parallelize_module(block, axis, _select_present(block, _plan_block(block)), src_data_rank=None)
    parallelize_module(model, axis, _select_present(model, _plan_ends()), src_data_rank=None)
    if tied:
        # Embedding and head are both split along the vocabulary, so they can share one weight again.
        ends: Any = model
        ends.head.weight = ends.embed.weight
    for name, weight in model.named_parameters():
        # torch's SequenceParallel would train frozen norms.
        weight.requires_grad_(name not in frozen)


def list_mixtures(model: nn.Module) -> list[MixtureOfExperts]:
    """Return the mixtures of experts that are split: the feed-forward layers of blocks."""
    parts = [getattr(block, "ffn", None) for block in _list_layers(model)]
    return [part for part in parts if isinstance(part, MixtureOfExperts)]


def _list_layers(model: Any) -> list[nn.Module]:
    return list(model.layers.values())


def _plan_block(block: Any) -> dict[str, Any]:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import PrepareModuleInput, SequenceParallel

    from trainer.parallel.split_styles import SplitColumns, SplitExperts, SplitRows

    def gather_sequence() -> PrepareModuleInput:
        return PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))

    return {
        "attention_norm": SequenceParallel(),
        "attention": gather_sequence(),
        "attention.q": SplitColumns(),
        "attention.k": SplitColumns(),
        "attention.v": SplitColumns(),
        # Each rank normalises its own heads (dimension 1), and the gradients of the weights are summed over ranks.
        "attention.q_norm": SequenceParallel(sequence_dim=1, use_local_output=True),
        "attention.k_norm": SequenceParallel(sequence_dim=1, use_local_output=True),
        "attention.o": SplitRows(output_layouts=Shard(1)),
        "ffn_norm": SequenceParallel(),
        "ffn": SplitExperts() if isinstance(getattr(block, "ffn", None), MixtureOfExperts) else gather_sequence(),
        "ffn.gate": SplitColumns(),
        "ffn.up": SplitColumns(),
        "ffn.down": SplitRows(output_layouts=Shard(1)),
    }


def _plan_ends() -> dict[str, Any]:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import RowwiseParallel, SequenceParallel

    from trainer.parallel.split_styles import SplitHead

    return {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": SplitHead(),
    }


def _select_present(module: nn.Module, plan: dict[str, Any]) -> dict[str, Any]:
    names = {name for name, part in module.named_modules() if part is not None}
    return {name: style for name, style in plan.items() if name in names}
