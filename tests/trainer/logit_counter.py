"""Record the tensors over the vocabulary that torch creates on this rank."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LogitCounter(TorchDispatchMode):
    """A mode that records the largest number of rows and columns of tensors that could be logits, and of all together.

    Those are two-dimensional or larger, and their last dimension is one of `widths`.
    """

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.rows = self.columns = 0
        self.values_at_once = 0
        """The most values of all such tensors that existed at the same time."""
        self._widths = widths
        self._created: dict[int, weakref.ref[torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.is_view:
            return result
        for value in result if isinstance(result, tuple) else (result,):
            if isinstance(value, torch.Tensor) and value.dim() > 1 and value.shape[-1] in self._widths:
                self.rows = max(self.rows, value.shape[:-1].numel())
                self.columns = max(self.columns, value.shape[-1])
                self._created[value.data_ptr()] = weakref.ref(value)
        existing = [value for created in self._created.values() if (value := created()) is not None]
        self.values_at_once = max(self.values_at_once, sum(value.numel() for value in existing))
        return result
