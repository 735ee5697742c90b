"""The norm of all gradients together, right under every strategy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from trainer.config.layout import AXES
from trainer.parallel.mesh import Mesh


@torch.no_grad()
def global_norm(gradients: Iterable[torch.Tensor], mesh: Mesh) -> torch.Tensor:
    """The 2-norm over all ranks' gradients, each element counted once; a device tensor, nothing waits for it.

    torch's clip_grad_norm_ refuses gradients on different meshes and knows nothing of pipeline stages.
    """
    by_axes: dict[tuple[str, ...], list[torch.Tensor]] = {}
    for gradient in gradients:
        by_axes.setdefault(_sharded_axes(gradient), []).append(local(gradient))
    keys = list(by_axes)
    sums = [_sum_of_squares(by_axes[key], mesh.device) for key in keys]
    for axis in AXES:
        spread = [index for index, key in enumerate(keys) if axis in key]
        if spread and mesh.group(axis) is not None:
            reduced = mesh.sum_over(torch.stack([sums[index] for index in spread]), axis)
            for place, index in enumerate(spread):
                sums[index] = reduced[place]
    total = torch.stack(sums).sum() if sums else torch.zeros((), device=mesh.device)
    return mesh.sum_over(total, "pipeline").sqrt()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor, or the tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _sharded_axes(gradient: Any) -> tuple[str, ...]:
    if not hasattr(gradient, "placements"):
        return ()
    names = gradient.device_mesh.mesh_dim_names
    # A replicated part is the same on every rank of its axis. Anything else that is not replicated is spread.
    return tuple(name for name, place in zip(names, gradient.placements, strict=True) if not place.is_replicate())


def _sum_of_squares(parts: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    filled = [part for part in parts if part.numel()]
    if not filled:
        return torch.zeros((), device=device)
    return torch.stack(torch._foreach_norm(filled, 2, dtype=torch.float32)).square().sum().to(device)
