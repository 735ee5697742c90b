"""Versions in the output of Pulumi and Go are compared as numbers."""

from __future__ import annotations

import pytest

from setup.pins import is_at_least


@pytest.mark.parametrize(
    ("printed", "minimum", "expected"),
    [
        ("v3.259.0", "3.259.0", True),
        ("3.259.0", "3.259.0", True),
        ("v3.272.1", "3.259.0", True),
        ("v3.260.0-alpha.1", "3.259.0", True),
        ("v4.0.0", "3.259.0", True),
        ("v3.258.9", "3.259.0", False),
        ("v3.99.0", "3.259.0", False),
        ("v2.300.0", "3.259.0", False),
        ("go version go1.26.8 linux/amd64", "1.25.11", True),
        ("go version go1.25.11 linux/arm64", "1.25.11", True),
        ("go version go1.19.8 linux/amd64", "1.25.11", False),
        ("go version go1.25.9 linux/amd64", "1.25.11", False),
        ("warning: no version", "3.259.0", False),
        ("", "3.259.0", False),
    ],
)
def test_is_at_least(printed: str, minimum: str, expected: bool) -> None:
    assert is_at_least(printed, minimum) is expected
