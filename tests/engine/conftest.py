"""Stacks of machines; each is removed by label when its module ends, even after a failure."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from tests.engine.machines import Machines, Spec, small

MakeMachines = Callable[..., Machines]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/engine/" in item.path.as_posix():
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Restore SIGINT, with which Pulumi ends its plugins: children of a shell's background job would ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeMachines]:
    stacks: list[Machines] = []

    def machines(stack: str, name: str | None = None, **changes: object) -> Machines:
        # Test runs on the same machine must not share a cluster.
        spec: Spec = small(name or f"eng{os.getpid()}-{stack}", **changes)
        built = Machines(stack, tmp_path_factory.mktemp(stack), spec)
        stacks.append(built)
        return built

    yield machines
    for built in stacks:
        built.remove_by_label()
