"""Everything here breaks something on purpose, in stacks that no other layer uses."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/faults/" in item.path.as_posix():
            item.add_marker(pytest.mark.faults)
