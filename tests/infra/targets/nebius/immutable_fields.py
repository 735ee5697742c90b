"""Fields of specs that the API does not change, by the declarations in Nebius's SDK."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nebius.base.protos.dynamic import REGISTRY

Message = dict[str, Any]


def list_fields(spec: str) -> dict[str, bool]:
    """Return whether each field of a message is immutable, by the field's name in JSON."""
    message: Any = REGISTRY.message_class(spec)
    names = message.get_descriptor().fields_by_name
    return {names[entry.proto_name].json_name: entry.immutable for entry in message.__FIELDS__}


def find_changes(spec: str, old: Message, new: Message, where: str = "spec") -> Iterator[str]:
    """Yield the immutable fields of a message, and of those in it, that differ between two values in JSON."""
    parts = {each.json_name: each.message_type for each in REGISTRY.message_descriptor(spec).fields}
    for name, is_immutable in list_fields(spec).items():
        before, after, part = old.get(name), new.get(name), parts[name]
        if before == after:
            continue
        if is_immutable:
            yield f"{where}.{name}"
        elif part and not part.is_map_entry and isinstance(before, dict) and isinstance(after, dict):
            yield from find_changes(part.full_name, before, after, f"{where}.{name}")
