"""Whether something in a cloud is as it was sent. A pure function."""

from __future__ import annotations

from typing import Any


def differs(sent: Any, existing: Any) -> bool:
    """Return whether anything that was sent is otherwise; what the cloud adds to objects does not count.

    Lists must have the same entries: a security rule that somebody has added is a difference. Entries with a name are
    compared by it, others in the same order; text in any case, because not every cloud keeps it in ids.
    """
    if isinstance(sent, dict):
        return not isinstance(existing, dict) or any(differs(value, existing.get(key)) for key, value in sent.items())
    if isinstance(sent, list):
        if not isinstance(existing, list) or len(sent) != len(existing):
            return True
        pairs = zip(_sort(sent), _sort(existing), strict=True)
        return any(differs(entry, other) for entry, other in pairs)
    if isinstance(sent, str) and isinstance(existing, str):
        return sent.casefold() != existing.casefold()
    return bool(sent != existing)


def _sort(entries: list[Any]) -> list[Any]:
    if all(isinstance(entry, dict) and "name" in entry for entry in entries):
        return sorted(entries, key=lambda entry: str(entry["name"]))
    return entries
