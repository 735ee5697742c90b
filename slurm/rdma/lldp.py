"""Parse what `lldpctl -f json` prints: the switch at the other end of each network interface of a host."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LldpSwitch:
    """A switch, by the id of its chassis; its name may be empty or that of another one, too."""

    id: str
    name: str = ""


class LldpError(ValueError):
    """The output is not that of `lldpctl -f json`."""


def parse_lldp(text: str) -> Mapping[str, LldpSwitch]:
    """Return the switch of each interface that has exactly one; raise LldpError. An empty text has none.

    Several switches on one interface mean that something in between passes LLDP on, so that none of them is certain.
    Neighbors that say that they are neither a bridge nor a router are other hosts.
    """
    if not text:
        return {}
    try:
        interfaces = json.loads(text)["lldp"].get("interface", {})
        switches: dict[str, set[LldpSwitch]] = defaultdict(set)
        for name, neighbor in _pair(interfaces):
            for switch in _read_chassis(neighbor.get("chassis", {})):
                switches[name].add(switch)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LldpError(f"unexpected output of lldpctl ({type(error).__name__}: {error})") from None
    return {name: next(iter(seen)) for name, seen in switches.items() if len(seen) == 1}


def _pair(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values: a mapping, or a list of mappings, which lldpctl prints if there are several entries."""
    for part in value if isinstance(value, list) else [value]:
        yield from part.items()


def _read_chassis(chassis: Any) -> Iterator[LldpSwitch]:
    # The chassis is under its name, or without one if it has none.
    for name, described in [("", chassis)] if "id" in chassis else _pair(chassis):
        capabilities = described.get("capability", [])
        listed = capabilities if isinstance(capabilities, list) else [capabilities]
        enabled = {entry["type"] for entry in listed if entry.get("enabled")}
        if "id" in described and (not listed or enabled & {"Bridge", "Router"}):
            yield LldpSwitch(str(described["id"]["value"]).lower(), name)
