"""Bitwise reproducible kernels (`run.deterministic`): require them, and name an operation that has none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from trainer.config.errors import ConfigError, ConfigProblem

_MARK = " does not have a deterministic implementation"


def require_deterministic_kernels() -> None:
    """Make torch use reproducible kernels only, and fail in operations that have none.

    If torch only warned about such operations, attention would use its faster, irreproducible backward pass.
    """
    # Without a fixed workspace, cuBLAS may add up in another order.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


@contextmanager
def name_irreproducible_operation() -> Iterator[None]:
    """Turn the error of an operation that has no reproducible kernel into one that names the setting."""
    try:
        yield
    except RuntimeError as error:
        operation, mark, _ = str(error).partition(_MARK)
        if not mark:
            raise
        message = f"true, but {operation.split()[-1]} has no reproducible kernel on this device"
        fix = "set it to false, or replace the operation in the model"
        raise ConfigError([ConfigProblem("run.deterministic", message, fix)]) from error
