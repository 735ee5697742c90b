"""Tensors without values, with which the memory of a model is measured."""

from __future__ import annotations

import sys
from typing import Any

import torch


def is_without_memory(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has a shape but no values: a meta tensor or a fake one."""
    # Start-up: the module is loaded only if there are fake tensors.
    fake_tensors: Any = sys.modules.get("torch._subclasses.fake_tensor")
    return tensor.is_meta or (fake_tensors is not None and isinstance(tensor, fake_tensors.FakeTensor))
