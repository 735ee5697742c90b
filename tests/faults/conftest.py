"""A cluster that all tests of this folder share; they break it during `up`, while it runs, changes and is removed.

The files run in the order of `ORDER`, because each test starts from what the one before left; the last one removes the
cluster. A test can also run alone: `healthy` brings the cluster up first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.harness import Spec, Stack, small_spec

ORDER = (
    *("test_interrupted_up", "test_broken_parts", "test_controller_outage", "test_cut_off_node", "test_sick_node"),
    *("test_controller_crash", "test_hung_node", "test_training_faults", "test_scarce_resources"),
    "test_interrupted_change",
)
MakeStack = Callable[[str, Spec], Stack]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder and put their files in order."""
    for item in items:
        if "/faults/" in item.path.as_posix():
            item.add_marker(pytest.mark.faults)
    items.sort(key=lambda item: ORDER.index(item.path.stem) if item.path.stem in ORDER else len(ORDER))


@pytest.fixture(scope="session")
def broken(make_stack: MakeStack) -> Iterator[Stack]:
    """Return the shared cluster as the tests before left it."""
    stack = make_stack("broken", small_spec(login={"enabled": False}))
    yield stack
    stack.muster("teardown", "--yes", "--force")
    assert stack.exists() == []


@pytest.fixture
def healthy(broken: Stack) -> Stack:
    """Return the shared cluster when it is up; each test repairs what it breaks."""
    if not (broken.home / broken.name / "inventory.json").exists():
        broken.up()
    return broken
