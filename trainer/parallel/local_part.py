"""This rank's part of a tensor, for layers that compute with plain tensors under tensor parallelism."""

from __future__ import annotations

from typing import Any

import torch


def take_local_part(tensor: Any) -> torch.Tensor:
    """Return this rank's part of a DTensor, or the tensor itself.

    Each rank of the tensor axis computes a part of what depends on it. So the gradient of a tensor that all of these
    ranks hold whole is a sum over them, which still has to be computed.
    """
    if not hasattr(tensor, "to_local"):
        plain: torch.Tensor = tensor
        return plain
    # Start-up: only runs with DTensors need it.
    from torch.distributed.tensor import Partial  # noqa: PLC0415

    axes = zip(tensor.device_mesh.mesh_dim_names, tensor.placements, strict=True)
    placements = [Partial() if axis == "tensor" and place.is_replicate() else place for axis, place in axes]
    local: torch.Tensor = tensor.to_local(grad_placements=placements)
    return local
