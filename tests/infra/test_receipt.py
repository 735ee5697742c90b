"""The receipt of a teardown."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from infra.receipt import CacheEntry, Item, Receipt, mark_removed, save

CREATED, NOW = "2026-01-01T10:00:00+00:00", "2026-01-01T11:30:00+00:00"


def test_only_items_that_no_longer_exist_are_marked_as_removed() -> None:
    before = [Item("container", "a", CREATED), Item("network", "n", CREATED)]
    after = [Item("network", "n", CREATED), Item("volume", "late")]
    assert mark_removed(before, after) == (
        Item("container", "a", CREATED, removed=True),
        Item("network", "n", CREATED, removed=False),
        Item("volume", "late", "", removed=False),
    )


@pytest.mark.parametrize(("created", "lived"), [(CREATED, 5400.0), ("", None)])
def test_age_of_an_item(created: str, lived: float | None) -> None:
    assert Item("container", "a", created).lived(datetime(2026, 1, 1, 11, 30, tzinfo=UTC)) == lived


def test_receipt_is_saved_as_json(tmp_path: Path) -> None:
    items = (Item("container", "a", CREATED, removed=True), Item("volume", "v"))
    receipt = Receipt("local", "demo", NOW, 3.2, items, (CacheEntry("node image", "muster-node:24.11", 913),))
    path = save(receipt, tmp_path / "receipts")
    assert path.name == "local-20260101T113000Z.json"
    saved = json.loads(path.read_text())
    assert (saved["removed"], saved["left"]) == (1, 1)
    assert saved["items"][0]["created"] == CREATED
    assert saved["kept"][0]["size"] == 913
    assert saved["drop_command"] == "make clean-cache"
