"""Make sure that ranks train the same model: the same tensors, on the right device, with the same values."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any
from zlib import crc32

import torch
import torch.distributed
from torch import nn

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.json_exchange import gather_bytes, gather_tensors

# Many of the names used here have no types, and mypy must give the same result where torch is not installed.
dist: Any = torch.distributed


def broadcast_model(model: nn.Module, group: Any, device: torch.device) -> None:
    """Give all ranks of a group the weights and buffers, on this device, of its first rank; without one, do nothing.

    Raise ConfigError on all ranks if their models differ: the backends would hang, or fail without naming a tensor.
    """
    if group is None or dist.get_world_size(group) == 1:
        return
    check_same_tensors(model, group, device)
    for value in [*model.parameters(), *model.buffers()]:
        dist.broadcast(value.detach(), group=group, group_src=0)


def check_same_tensors(model: nn.Module, group: Any, device: torch.device) -> None:
    """Raise ConfigError on all ranks of a group if their models differ in name, shape or type of a weight or buffer."""
    text = "\n".join(describe_tensors(model)).encode()
    checksums = gather_tensors(torch.tensor([crc32(text)], device=device), group)
    if len(set(checksums.flatten().tolist())) > 1:
        texts = gather_bytes(text, group, device)
        raise ConfigError([describe_difference([part.decode().splitlines() for part in texts])])


def check_device(model: nn.Module, device: torch.device) -> None:
    """Raise ConfigError if a weight or a buffer is not on this device."""
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if value.device != device:
            message = f"{name} is on {value.device}, but this rank trains on {device}"
            raise ConfigError([ConfigProblem("model", message, "create it on the device of the model's input")])


def describe_tensors(model: nn.Module) -> list[str]:
    """Return a line with name, shape and type for each weight and buffer, in the model's order."""
    weights = [
        f"{name} {list(value.shape)} {value.dtype}, {'trained' if value.requires_grad else 'frozen'}"
        for name, value in model.named_parameters()
    ]
    return weights + [f"{name} {list(value.shape)} {value.dtype}" for name, value in model.named_buffers()]


def describe_difference(by_rank: list[list[str]]) -> ConfigProblem:
    """Return the first difference between the tensors of the first rank and of another one, whose lists differ."""
    first = by_rank[0]
    rank = next(index for index, lines in enumerate(by_rank) if lines != first)
    pairs = zip_longest(first, by_rank[rank], fillvalue="nothing")
    ours, theirs = next(pair for pair in pairs if pair[0] != pair[1])
    message = f"ranks have different models: rank 0 has {ours}, where rank {rank} has {theirs}"
    return ConfigProblem("model", message, "build the same model on every rank")
