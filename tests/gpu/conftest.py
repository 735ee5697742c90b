"""Run these tests only if this folder is requested, and report missing requirements before the first test."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.requirements import list_missing

HERE = Path(__file__).resolve().parent


def is_requested(config: pytest.Config) -> bool:
    requested = [Path(argument.split("::")[0]).resolve() for argument in config.args]
    return any(path == HERE or HERE in path.parents for path in requested)


def pytest_configure(config: pytest.Config) -> None:
    missing = list_missing() if is_requested(config) else []
    if missing:
        raise pytest.UsageError("tests/gpu: this machine lacks " + "; ".join(missing))
    # torch reads it at the first matrix product of the process, which may be in a test that does not need it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Ignore this folder in `make test`, which collects all of tests/ on machines without torch or a GPU."""
    return None if is_requested(config) else True


@pytest.fixture(autouse=True)
def clean_gpu() -> Iterator[None]:
    """Clean up, so that no test sees the process group, compiled code or memory of another."""
    yield
    import torch  # noqa: PLC0415  # this file is also read without torch

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    torch.compiler.reset()
    torch.use_deterministic_algorithms(False)
    gc.collect()
    torch.cuda.empty_cache()
