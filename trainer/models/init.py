"""Initial weights: they depend only on the seed and each parameter's name, not on how ranks share the model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from trainer.models import lora
from trainer.parallel.modules import strip_wrappers


@torch.no_grad()
def fill(modules: Iterable[nn.Module], seed: int, device: torch.device | str | None = None) -> None:
    """Draw the initial values of every whole parameter, one at a time, and store this rank's part.

    Values are drawn on the parameter's own device unless `device` is given. A GPU and a CPU draw different numbers, so
    the values of parameters that are offloaded to the host must be drawn on the GPU, too.
    """
    for module in modules:
        for name, parameter in module.named_parameters():
            _draw(module, strip_wrappers(name), parameter, seed, torch.device(device or parameter.device))


@torch.no_grad()
def copy_local_part(whole: torch.Tensor, parameter: Any) -> None:
    """Copy this rank's part of a whole tensor into the parameter."""
    _get_local(parameter).copy_(_slice_local_part(whole, parameter))


def _derive_seed(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little") >> 1


def _draw(module: Any, name: str, parameter: Any, seed: int, device: torch.device) -> None:
    initial = lora.initial if lora.is_adapter(name) else module.initial
    mean, std = initial(name, tuple(parameter.shape))
    if std == 0:
        _get_local(parameter).fill_(mean)
        return
    generator = torch.Generator(device).manual_seed(_derive_seed(seed, name))
    whole = torch.empty(parameter.shape, dtype=torch.float32, device=device)
    whole.normal_(mean, std, generator=generator)
    copy_local_part(whole, parameter)


def _get_local(parameter: Any) -> torch.Tensor:
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def _slice_local_part(whole: torch.Tensor, parameter: Any) -> torch.Tensor:
    """Return this rank's slice of a tensor that every rank holds whole, without communication."""
    if not hasattr(parameter, "to_local"):
        return whole
    # Start-up: only sharded models need it.
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # noqa: PLC0415

    shape, offset = compute_local_shape_and_global_offset(whole.shape, parameter.device_mesh, parameter.placements)
    return whole[tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))]
