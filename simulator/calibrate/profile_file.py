"""The profile as a file: one machine, and a measurement for each number of nodes and ranks that it was run with."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from simulator.calibrate.identity import SAME

SCHEMA = 2


class OtherMachineError(Exception):
    """The file holds a profile of another machine, or none; the message says what to do."""


def write(path: Path, machine: dict[str, Any], world: dict[str, Any], stack: str) -> None:
    """Beside what other numbers of ranks left there."""
    found = _read(path, machine)
    kept = [
        one for one in found.get("worlds", []) if (one["nodes"], one["per_node"]) != (world["nodes"], world["per_node"])
    ]
    worlds = sorted([*kept, world], key=lambda one: (one["nodes"], one["per_node"]))
    profile = {
        "schema": SCHEMA,
        "stack": stack or found.get("stack", ""),
        "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine,
        "worlds": worlds,
    }
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(profile, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def check(path: Path, machine: dict[str, Any]) -> None:
    """Before anything is measured."""
    _read(path, machine)


def _read(path: Path, machine: dict[str, Any]) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        schema = found["schema"]
        other = [name for name in SAME if found["machine"][name] != machine[name]]
    except (ValueError, KeyError, TypeError):
        raise OtherMachineError(
            f"--out: {path} is no profile; allowed: a profile or a new file; name another"
        ) from None
    if schema != SCHEMA:
        raise OtherMachineError(f"--out: {path} has schema {schema!r}; allowed: {SCHEMA}; name another file")
    if other:
        name = other[0]
        was, now = found["machine"][name], machine[name]
        raise OtherMachineError(f"--out: {path} is of {name} {was!r}; allowed: {now!r} as here; name another file")
    return found
