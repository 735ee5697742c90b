"""The parts of a model that are sharded, recomputed and compiled one by one."""

from __future__ import annotations

from torch import nn


def blocks(model: nn.Module) -> list[nn.Module]:
    """Members of the model's own lists of layers; where it has none, its children that hold weights."""
    lists = [child for child in model.children() if isinstance(child, nn.ModuleDict | nn.ModuleList | nn.Sequential)]
    members = [block for group in lists for block in group.children()]
    chosen = members or list(model.children())
    return [block for block in chosen if any(True for _ in block.parameters())]


def is_tied(model: nn.Module) -> bool:
    named = sum(1 for _ in model.named_parameters(remove_duplicate=False))
    return named > sum(1 for _ in model.parameters())
