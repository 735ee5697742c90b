"""The receipt of a teardown: what existed, for how long, what was removed, what stays and what that costs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from infra.home import private_folder


@dataclass(frozen=True)
class Item:
    """One thing that existed when teardown began, or was found on the way."""

    kind: str
    name: str
    created: str = ""
    """ISO 8601; empty where nobody wrote it down."""
    removed: bool = False
    usd_per_hour: float = 0.0
    """What it costs as long as it exists."""
    kept: str = ""
    """Why it is to stay; empty where it should have gone."""

    def lived(self, until: datetime) -> float | None:
        return (until - datetime.fromisoformat(self.created)).total_seconds() if self.created else None


@dataclass(frozen=True)
class CacheEntry:
    """A cache: made once, used by every cluster, not part of any."""

    what: str
    name: str
    size: int | None = None


@dataclass(frozen=True)
class Receipt:
    stack: str
    cluster: str
    at: str
    seconds: float
    items: tuple[Item, ...] = ()
    kept: tuple[CacheEntry, ...] = ()
    drop_command: str = "make clean-cache"
    notes: tuple[str, ...] = field(default=())
    unseen: tuple[str, ...] = ()
    """What could not be looked at in the end, each with the reason: something may be left there."""

    @property
    def left(self) -> tuple[Item, ...]:
        """What should not be there any more."""
        return tuple(item for item in self.items if not item.removed and not item.kept)

    @property
    def stays(self) -> tuple[Item, ...]:
        """What the stack file says is to outlive the cluster, with what that needs."""
        return tuple(item for item in self.items if not item.removed and item.kept)

    @property
    def usd_per_hour(self) -> float:
        """What is still paid for."""
        return sum(item.usd_per_hour for item in self.items if not item.removed)

    @property
    def removed(self) -> tuple[Item, ...]:
        return tuple(item for item in self.items if item.removed)

    @property
    def when(self) -> datetime:
        return datetime.fromisoformat(self.at)


def settle(before: Iterable[Item], after: Iterable[Item]) -> tuple[Item, ...]:
    """Everything seen at either time; what is still there afterwards was not removed."""
    still = {(item.kind, item.name) for item in after}
    seen = {(item.kind, item.name): item for item in (*before, *after)}
    return tuple(replace(item, removed=key not in still) for key, item in seen.items())


def save(receipt: Receipt, folder: Path) -> Path:
    private_folder(folder)
    path = folder / f"{receipt.stack}-{receipt.when.astimezone(UTC):%Y%m%dT%H%M%SZ}.json"
    counts = {"left": len(receipt.left), "removed": len(receipt.removed), "stays": len(receipt.stays)}
    body = asdict(receipt) | counts | {"usd_per_hour": round(receipt.usd_per_hour, 4)}
    path.write_text(json.dumps(body, indent=2) + "\n")
    return path
