"""The state to which the folder of a stack in MUSTER_HOME belongs.

A home has one folder for each name of a stack, but may be used with several states (MUSTER_STATE), which may all have a
stack of that name. The folder holds the files for access to one cluster: a command for another one would use them, or
overwrite them.
"""

from __future__ import annotations

import json
from dataclasses import replace

from infra.engine import remote_state
from infra.engine.access_restore import RESTORED_MARK, remove_files
from infra.engine.state_store import replace_file
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import FILE_STATE, STATE_VARIABLE, Home, StackHome

_RECORD = ".state-of"


def claim_folder(stack: StackHome) -> None:
    """Make a stack's folder that of its state; raise Stop if a stack of the same name in another state has it."""
    owner, own = _find_owner(stack), _name_state(stack)
    if owner not in ("", own):
        other = StackHome(replace(stack.home, remote="" if owner == FILE_STATE else owner), stack.name)
        new_place = _find_new_place(other)
        # A state that was moved here has the same cluster.
        if new_place != remote_state.open_store(stack.home).url:
            if new_place or _exists(other):
                raise _in_use_error(stack, _name_place(stack, new_place) if new_place else owner, own)
            remove_files(stack)
    if stack.folder.exists():
        record_owner(stack)


def record_owner(stack: StackHome) -> None:
    """Record that a stack's folder belongs to its state."""
    replace_file(stack.folder / _RECORD, _name_state(stack).encode())


def _find_owner(stack: StackHome) -> str:
    """Return the URL of the state to which the folder belongs, or FILE_STATE; empty if none has claimed it."""
    try:
        return (stack.folder / _RECORD).read_text()
    except FileNotFoundError:
        # Written by a version without records: files that were not restored are those of the file state, if it has any.
        in_files = StackHome(stack.home.with_file_state(), stack.name)
        is_restored = (stack.folder / RESTORED_MARK).exists()
        return FILE_STATE if stack.inventory.exists() and not is_restored and in_files.state.exists() else ""


def _name_state(stack: StackHome) -> str:
    return stack.home.remote or FILE_STATE


def _name_place(stack: StackHome, place: str) -> str:
    """Return the value of MUSTER_STATE for a place that the note of a move names."""
    return FILE_STATE if place == remote_state.open_store(stack.home.with_file_state()).url else place


def _find_new_place(other: StackHome) -> str:
    """Return the URL or folder to which a remote state was moved, by the last of several moves; empty if it was not."""
    last, visited = "", set[str]()
    place = _read_moved(other.home, other.home.remote) if other.home.remote else ""
    # An interrupted move back leaves notes that form a circle.
    while place and place not in visited:
        visited.add(place)
        last, place = place, _read_moved(other.home, place)
    return last


def _read_moved(home: Home, url: str) -> str:
    """Return where the note in a state says that it was moved; empty if there is no note, or it cannot be read."""
    try:
        moved = remote_state.open_store(replace(home, remote=url)).read(remote_state.MOVED)
    except Stop:  # Nothing is known about a state that cannot be read; a folder may be that of another machine.
        return ""
    return str(json.loads(moved)["to"]) if moved else ""


def _exists(other: StackHome) -> bool:
    """Return whether a state still has the stack; one that cannot be read counts as if it had."""
    if not other.home.remote:
        return other.state.exists()
    key = remote_state.state_key(other)
    try:
        return key in remote_state.open_store(other.home).list_tags(key)
    except Stop:
        return True


def _in_use_error(stack: StackHome, owner: str, own: str) -> Stop:
    return Stop(
        f"stack {stack.name}: {stack.folder} belongs to the cluster of the stack of this name in state {owner}, "
        f"but this command is for state {own}; nothing was changed",
        f"set {STATE_VARIABLE}='{owner}' to use that one; for both, rename one of the stack files, or use another "
        "MUSTER_HOME",
        BAD_INPUT,
    )
