"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from cluster.plural import format_count


@pytest.mark.parametrize(("number", "text"), [(0, "0 static nodes"), (1, "1 static node"), (2, "2 static nodes")])
def test_a_noun_follows_its_number(number: int, text: str) -> None:
    assert format_count(number, "static node") == text
