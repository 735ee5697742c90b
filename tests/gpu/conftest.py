"""These tests run only where somebody asks for this folder, and say what the machine lacks before the first of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.needs import missing

HERE = Path(__file__).resolve().parent


def asked_for(config: pytest.Config) -> bool:
    named = [Path(word.split("::")[0]).resolve() for word in config.args]
    return any(path == HERE or HERE in path.parents for path in named)


def pytest_configure(config: pytest.Config) -> None:
    lacking = missing() if asked_for(config) else []
    if lacking:
        raise pytest.UsageError("tests/gpu: this machine lacks " + "; ".join(lacking))


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """`make test` collects all of tests/, on machines that have neither torch nor a GPU."""
    return None if asked_for(config) else True


@pytest.fixture(autouse=True)
def clean_gpu() -> Iterator[None]:
    """No test finds another's process group, compiled code or memory."""
    yield
    import torch  # noqa: PLC0415  # this file is read where there is no torch

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    torch.compiler.reset()
    torch.use_deterministic_algorithms(False)
    gc.collect()
    torch.cuda.empty_cache()
