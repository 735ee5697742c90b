"""First weights: a pure function of the seed and each parameter's name, whatever rank holds which part of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trainer.parallel.names import clean


@torch.no_grad()
def fill(modules: Iterable[nn.Module], seed: int, device: torch.device | str | None = None) -> None:
    """Draw every parameter whole, one at a time, and keep this rank's part.

    Drawn on the parameter's own device unless another is given: a GPU draws other numbers than a CPU, so parameters
    that are offloaded to the host start as the others do only if they are drawn on the GPU too.
    """
    for module in modules:
        for name, parameter in module.named_parameters():
            _draw(module, clean(name), parameter, seed, torch.device(device or parameter.device))


@torch.no_grad()
def put(whole: torch.Tensor, parameter: Any) -> None:
    """This rank's part of a tensor that every rank has whole."""
    _local(parameter).copy_(_part(whole, parameter))


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little") >> 1


def _draw(module: Any, name: str, parameter: Any, seed: int, device: torch.device) -> None:
    mean, std = module.initial(name, tuple(parameter.shape))
    if std == 0:
        _local(parameter).fill_(mean)
        return
    generator = torch.Generator(device).manual_seed(_seed_of(seed, name))
    whole = torch.empty(parameter.shape, dtype=torch.float32, device=device)
    whole.normal_(mean, std, generator=generator)
    put(whole, parameter)


def _local(parameter: Any) -> torch.Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def _part(whole: torch.Tensor, parameter: Any) -> torch.Tensor:
    """This rank's slice of a tensor that all ranks have drawn alike; nothing is sent."""
    if not hasattr(parameter, "to_local"):
        return whole
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # noqa: PLC0415

    shape, offset = compute_local_shape_and_global_offset(whole.shape, parameter.device_mesh, parameter.placements)
    return whole[tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))]
