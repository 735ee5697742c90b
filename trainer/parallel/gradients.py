"""The norm of all gradients together, correct under every strategy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from trainer.config.layout import AXES, EXPERT_AXES
from trainer.parallel.mesh import Mesh


@torch.no_grad()
def compute_global_norm(gradients: Iterable[torch.Tensor], mesh: Mesh) -> torch.Tensor:
    """Return the 2-norm over the gradients of all ranks, each element counted once; nothing waits for the device.

    torch's clip_grad_norm_ rejects gradients on different meshes and does not sum over pipeline stages.
    """
    by_axes: dict[tuple[str, ...], list[torch.Tensor]] = {}
    for gradient in gradients:
        by_axes.setdefault(_list_sharded_axes(gradient), []).append(to_local(gradient))
    keys = list(by_axes)
    sums = [_sum_squares(by_axes[key], mesh.device) for key in keys]
    for axis in (*AXES, *EXPERT_AXES):
        spread = [index for index, key in enumerate(keys) if axis in key]
        if spread and mesh.group(axis) is not None:
            reduced = mesh.sum_over(torch.stack([sums[index] for index in spread]), axis)
            for place, index in enumerate(spread):
                sums[index] = reduced[place]
    total = torch.stack(sums).sum() if sums else torch.zeros((), device=mesh.device)
    return mesh.sum_over(total, "pipeline").sqrt()


def to_local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a DTensor, or the tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _list_sharded_axes(gradient: Any) -> tuple[str, ...]:
    if not hasattr(gradient, "placements"):
        return ()
    names = gradient.device_mesh.mesh_dim_names
    # A replicated gradient is the same on every rank of the axis; any other placement spreads it over the axis.
    return tuple(name for name, place in zip(names, gradient.placements, strict=True) if not place.is_replicate())


def _sum_squares(parts: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    filled = [part for part in parts if part.numel()]
    if not filled:
        return torch.zeros((), device=device)
    return torch.stack(torch._foreach_norm(filled, 2, dtype=torch.float32)).square().sum().to(device)
