"""Restore the files for access to a cluster that another operator created, from its state."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from infra.engine import pulumi
from infra.engine.environment import prepare
from infra.home import StackHome
from infra.resources import access
from infra.targets.registry import get_target

_FILES = ("inventory.json", "id_ed25519", "known_hosts", "ssh_config")
_NEEDED = frozenset({"inventory", "spec", "stack", "ssh_private_key"})
RESTORED_MARK = ".restored"
"""File with the tag of the state from which the files of a stack were written."""


def restore_access(stack: StackHome, tag: str) -> None:
    """Write the files of the state with this tag, unless they are there; without a state, remove them."""
    mark = stack.folder / RESTORED_MARK
    if not tag:
        _remove_files(stack)
        return
    if mark.exists() and mark.read_text() == tag and stack.inventory.exists():
        return
    pulumi.check_readable(stack)
    if properties := find_properties(_read_resources(stack)):
        target = get_target(json.loads(properties["inventory"])["target"])
        access.write(stack.folder, target.access_files(stack.folder, properties))
    else:
        _remove_files(stack)
    mark.write_text(tag)


def find_properties(resources: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the properties of the resource that writes the files for access; none if it does not exist yet."""
    for resource in resources:
        inputs = resource.get("inputs", {})
        if inputs.keys() >= _NEEDED:
            properties = {name: unwrap_secret(value) for name, value in inputs.items()}
            if all(isinstance(properties[name], str) for name in _NEEDED):
                return properties
    return {}


def unwrap_secret(value: Any) -> Any:
    """Return the value of an input; Pulumi exports a secret as an object that holds its JSON."""
    return json.loads(value["plaintext"]) if isinstance(value, dict) and "plaintext" in value else value


def remove_files(stack: StackHome) -> None:
    """Remove the files for access."""
    for name in (*_FILES, RESTORED_MARK):
        (stack.folder / name).unlink(missing_ok=True)


def _read_resources(stack: StackHome) -> list[dict[str, Any]]:
    prepare(stack.home)
    return pulumi.resources(stack)


def _remove_files(stack: StackHome) -> None:
    """Remove the files for access, unless they may be those of a cluster whose state is still in MUSTER_HOME."""
    if not StackHome(stack.home.with_file_state(), stack.name).state.exists():
        remove_files(stack)
