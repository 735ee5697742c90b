"""Stacks for the tests that need a real engine; each is removed by label when its test ends, also after a failure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.harness import Spec, Stack


@pytest.fixture(scope="session")
def make_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, Spec], Stack]]:
    from tests.harness import Stack  # noqa: PLC0415  # the trainer's tests run where there is no docker client

    made: list[Stack] = []

    def make(name: str, spec: Spec, home: Path | None = None) -> Stack:
        # A name of its own for each run: a cluster of the same name may be somebody's, or another run's.
        named = spec | {"name": f"{name}-{os.getpid():x}"}
        stack = Stack(name, home or tmp_path_factory.mktemp(name), named)
        stack.remove()
        made.append(stack)
        return stack

    yield make
    for stack in made:
        stack.remove()
