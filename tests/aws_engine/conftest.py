"""Stacks on AWS as moto has it; one account for all, empty at the beginning of each module."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.aws_engine import moto_gaps
from tests.aws_engine.cloud_stack import CloudStack, example
from tests.aws_engine.guests import booting
from tests.moto_server import Moto, moto

__all__ = ["moto"]

MakeStack = Callable[..., CloudStack]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/aws_engine/" in item.path.as_posix() and "plugin" not in item.path.name:
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Pulumi ends its plugins with SIGINT; children of a shell's background job would ignore it for seconds."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def account(moto: Moto) -> Iterator[Moto]:
    moto_gaps.apply()
    moto.reset()
    with pytest.MonkeyPatch.context() as patch, booting():
        for name, value in moto.environment().items():
            patch.setenv(name, value)
        yield moto


@pytest.fixture(scope="module")
def make(account: Moto, tmp_path_factory: pytest.TempPathFactory) -> MakeStack:
    def stack(name: str, **changes: Any) -> CloudStack:
        return example(name, tmp_path_factory.mktemp(name), account, **changes)

    return stack
