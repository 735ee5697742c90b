"""Stacks for tests that need a real engine; all are removed by label when the session ends, even after a failure."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.nightly_cases import NightlyCases
from tests.nightly_parts import read_part, select_part

if TYPE_CHECKING:
    from tests.harness import Spec, Stack

pytest_plugins = ["tests.moto_fixtures"]


def pytest_configure(config: pytest.Config) -> None:
    """Make tests independent of the terminal's width and of how busy the machine is."""
    # Until the tests run: what is imported and collected stays for the whole session.
    gc.disable()
    # pytest-xdist sets it for its workers, and messages would be wrapped at that width.
    os.environ.pop("COLUMNS", None)
    # The state of the person who runs the tests is not theirs.
    os.environ.pop("MUSTER_STATE", None)
    config.pluginmanager.register(NightlyCases())
    if find_spec("hypothesis"):
        from hypothesis import settings  # noqa: PLC0415  # the trainer's tests run without it

        # The default limit of 200 ms per example is wall time, which other processes can use up.
        settings.register_profile("daily", deadline=None, max_examples=30)
        settings.register_profile("nightly", deadline=None, max_examples=300)
        settings.load_profile(config.getoption("--hypothesis-profile", None) or "daily")


@pytest.hookimpl(trylast=True)  # After the hooks that mark the tests of a folder.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select the tests of the part of the night that MUSTER_TEST_PART names."""
    if part := read_part():
        selected, others = select_part(items, part)
        config.hook.pytest_deselected(items=others)
        items[:] = selected


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Leave what was imported and collected out of garbage collections, and collect less often."""
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


@pytest.fixture(scope="session")
def make_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, Spec], Stack]]:
    """Return a function that creates a stack with its own home; no cluster exists yet."""
    from tests.harness import Stack  # noqa: PLC0415  # the trainer's tests run without a Docker client

    stacks: list[Stack] = []

    def make(name: str, spec: Spec, home: Path | None = None) -> Stack:
        # The process id makes the name unique: a cluster of the same name may belong to another user or test run.
        named = spec | {"name": f"{name}-{os.getpid():x}"}
        stack = Stack(name, home or tmp_path_factory.mktemp(name), named)
        stack.remove()
        stacks.append(stack)
        return stack

    yield make
    for stack in stacks:
        stack.remove()
