"""What counts as a difference between a resource that was sent and one that exists."""

from __future__ import annotations

from typing import Any

import pytest

from infra.targets.rented.comparison import differs

DIFFERENCES = {
    "added fields": ({"a": 1}, {"a": 1, "b": 2}, False),
    "other value": ({"a": {"b": 1}}, {"a": {"b": 2}}, True),
    "missing": ({"a": 1}, {}, True),
    "case of ids": ({"id": "/resourceGroups/A"}, {"id": "/resourcegroups/a"}, False),
    "order of named entries": (
        [{"name": "a", "x": 1}, {"name": "b", "x": 2}],
        [{"name": "b", "x": 2}, {"name": "a", "x": 1}],
        False,
    ),
    "more entries": (["a"], ["a", "b"], True),
    "another kind": ({"a": [1]}, {"a": None}, True),
}


@pytest.mark.parametrize(("sent", "existing", "expected"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_what_counts_as_a_difference(sent: Any, existing: Any, expected: bool) -> None:
    assert differs(sent, existing) is expected
