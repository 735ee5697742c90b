"""Record the largest tensor over the vocabulary that torch creates on this rank."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class LogitCounter(TorchDispatchMode):
    """A mode that records the largest number of rows and columns of tensors that could be logits.

    Those are two-dimensional or larger, and their last dimension is one of `widths`.
    """

    def __init__(self, *widths: int) -> None:
        super().__init__()
        self.rows = self.columns = 0
        self._widths = widths

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.is_view:
            return result
        for value in result if isinstance(result, tuple) else (result,):
            if isinstance(value, torch.Tensor) and value.dim() > 1 and value.shape[-1] in self._widths:
                self.rows = max(self.rows, value.shape[:-1].numel())
                self.columns = max(self.columns, value.shape[-1])
        return result
