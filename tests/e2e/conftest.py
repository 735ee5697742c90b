"""One real cluster for the tests that only look at it, and one that the change tests may grow and shrink."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.harness import Spec, Stack, small_spec

MakeStack = Callable[[str, Spec], Stack]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/e2e/" in item.path.as_posix():
            item.add_marker(pytest.mark.e2e)


@pytest.fixture(scope="session")
def cluster(make_stack: MakeStack) -> Iterator[Stack]:
    """Two groups: what is said of every group must hold for more than one."""
    spec = small_spec()
    spec["groups"]["cpu"] = {"count": 1, "size": {"cpus": 1, "memory_mb": 1024}}
    spec["users"] = {"alice": {"uid": 2001}, "bob": {"uid": 2002, "admin": True}}
    spec["slurm"] = {"default_group": "gpu"}
    stack = make_stack("e2e", spec)
    stack.up()
    yield stack
    stack.muster("teardown", "--yes", "--force")
    assert stack.exists() == []
