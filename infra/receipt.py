"""The receipt of a teardown: what existed and for how long, what was removed, what remains and what that costs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra.home import private_folder


@dataclass(frozen=True)
class Item:
    """A resource that existed when teardown began or appeared during it."""

    kind: str
    name: str
    created: str = ""
    """ISO 8601; empty if unknown."""
    removed: bool = False
    usd_per_hour: float = 0.0
    """Its cost while it exists."""
    keep_reason: str = ""
    """Why it must not be removed; empty if it should be removed."""
    size: int | None = None
    """Bytes of its files, if it is kept and they could be measured."""

    def lived(self, until: datetime) -> float | None:
        """Return its age in seconds; None if unknown."""
        return (until - datetime.fromisoformat(self.created)).total_seconds() if self.created else None


@dataclass(frozen=True)
class CacheEntry:
    """A cache that all clusters share."""

    what: str
    name: str
    size: int | None = None
    """In bytes; None if it could not be measured."""


@dataclass(frozen=True)
class Receipt:
    """The receipt of a teardown."""

    stack: str
    cluster: str
    at: str
    seconds: float
    items: tuple[Item, ...] = ()
    caches: tuple[CacheEntry, ...] = ()
    """The caches that are still there."""
    drop_command: str = "make clean-cache"
    notes: tuple[str, ...] = field(default=())
    unseen: tuple[str, ...] = ()
    """What could not be checked afterwards, each with the reason; resources may remain there."""

    @property
    def left(self) -> tuple[Item, ...]:
        """Return the items that should have been removed but were not."""
        return tuple(item for item in self.items if not item.removed and not item.keep_reason)

    @property
    def retained(self) -> tuple[Item, ...]:
        """Return the items that outlive the cluster because of the stack file, and those they depend on."""
        return tuple(item for item in self.items if not item.removed and item.keep_reason)

    @property
    def usd_per_hour(self) -> float:
        """Return the hourly cost of what remains."""
        return sum(item.usd_per_hour for item in self.items if not item.removed)

    @property
    def removed(self) -> tuple[Item, ...]:
        return tuple(item for item in self.items if item.removed)

    @property
    def when(self) -> datetime:
        return datetime.fromisoformat(self.at)


def mark_removed(before: Iterable[Item], after: Sequence[Item]) -> tuple[Item, ...]:
    """Return the items that existed before or after, as they are after; those that do not exist then are removed."""
    remaining = {(item.kind, item.name) for item in after}
    items = {(item.kind, item.name): item for item in (*before, *after)}
    return tuple(replace(item, removed=key not in remaining) for key, item in items.items())


def save(receipt: Receipt, folder: Path) -> Path:
    """Write a receipt as JSON; return its path."""
    private_folder(folder)
    path = folder / f"{receipt.stack}-{receipt.when.astimezone(UTC):%Y%m%dT%H%M%SZ}.json"
    counts = {"left": len(receipt.left), "removed": len(receipt.removed), "stays": len(receipt.retained)}
    body = _rename_keys(asdict(receipt), {"caches": "kept"})
    body["items"] = [_rename_keys(item, {"keep_reason": "kept"}) for item in body["items"]]
    body |= counts | {"usd_per_hour": round(receipt.usd_per_hour, 4)}
    path.write_text(json.dumps(body, indent=2) + "\n")
    return path


def _rename_keys(fields: Mapping[str, Any], new_names: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields under the keys of the file format, in the same order."""
    return {new_names.get(name, name): value for name, value in fields.items()}
