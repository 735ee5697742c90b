"""Whether something on Nebius was created from another spec. A pure function; specs are as the API answers them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.targets.nebius.kinds import Kind
from infra.targets.rented.comparison import differs


def find_outdated(kind: Kind, spec: Mapping[str, Any], existing: Mapping[str, Any]) -> list[str]:
    """Return the fields in which a resource that exists differs from a spec."""

    def is_outdated(key: str) -> bool:
        # A field that the spec no longer has would otherwise go unnoticed.
        if key not in spec or key not in existing:
            return True
        if key in kind.watched:
            return bool(spec[key] != existing[key])
        return differs(spec[key], existing[key]) or _has_public_address(spec[key]) != _has_public_address(existing[key])

    keys = {*spec, *kind.optional.intersection(existing)}
    return [key for key in sorted(keys) if is_outdated(key)]


def _has_public_address(interfaces: Any) -> bool:
    entries = interfaces if isinstance(interfaces, list) else []
    return any(isinstance(entry, dict) and "publicIpAddress" in entry for entry in entries)
