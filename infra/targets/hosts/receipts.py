"""What became of everything that muster had changed on a host, stored beside the receipts of teardown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from bootstrap.changes import Restoration
from infra.home import Home, private_folder

_MAX_NOTED = 5


def save_receipt(home: Home, stack: str, host: str, restored: Iterable[Restoration]) -> None:
    """Write the receipt of a host as JSON, in place of that of an earlier release."""
    private_folder(home.receipts)
    _locate(home, stack, host).write_text(json.dumps([asdict(entry) for entry in restored], indent=2) + "\n")


def forget_receipt(home: Home, stack: str, host: str) -> None:
    """Remove the receipt of an earlier release, when a host is adopted."""
    _locate(home, stack, host).unlink(missing_ok=True)


def describe_receipts(home: Home, stack: str, host: str) -> list[str]:
    """Return the number of subjects of a released host by outcome, and the first of those that were left."""
    path = _locate(home, stack, host)
    try:
        restored = [Restoration(**entry) for entry in json.loads(path.read_text())]
    except FileNotFoundError:
        return []
    counts = Counter(entry.outcome for entry in restored)
    numbers = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("restored", "removed", "left"))
    left = [entry for entry in restored if entry.outcome == "left"]
    more = [f"{host}: {len(left) - _MAX_NOTED} more are left"] if len(left) > _MAX_NOTED else []
    return [f"{host}: {numbers} ({path})", *(f"{host}: {entry}" for entry in left[:_MAX_NOTED]), *more]


def _locate(home: Home, stack: str, host: str) -> Path:
    return home.receipts / f"{stack}-host-{host}.json"
