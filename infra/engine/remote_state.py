"""The state that operators share: where it is, and the copy of it that commands on this machine read.

Pulumi reads and writes the store itself. Everything else (which stacks exist, who holds Pulumi's lock, how the last run
ended) is read from a copy in MUSTER_HOME, which has the layout of a state folder and is refreshed before it is read.
Files of muster that the next operator needs, too, such as receipts, are stored next to the state.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
from collections.abc import Iterator
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from infra.engine.state_store import FolderStore, StateStore, replace_file
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import FILE_STATE, STATE_VARIABLE, Home, StackHome, private_folder
from infra.targets.mixins import StoresState
from infra.targets.registry import targets

STACKS = ".pulumi/stacks/muster/"
MOVED = ".muster/moved.json"
MOVING = ".muster/moving.json"
_FILES = ".muster/files/"
_TAGS = "tags.json"
_HISTORY_RECORDS = 5
_MACHINE_ID = Path("/etc/machine-id")


def find_state_target(url: str) -> StoresState:
    """Return the target that stores states under such URLs; raise Stop if there is none."""
    stores = [target for target in targets().values() if isinstance(target, StoresState)]
    for target in stores:
        if url.startswith(f"{target.state_scheme}://"):
            return target
    is_variable = url == os.environ.get(STATE_VARIABLE)
    fix = f"correct {STATE_VARIABLE}" if is_variable else "use a URL of one of these forms"
    allowed = ", ".join([*(target.state_example for target in stores), FILE_STATE])
    raise Stop(f"state: '{url}' is not the URL of a state; allowed: {allowed}", fix, BAD_INPUT)


def open_store(home: Home) -> StateStore:
    """Return the store of a home's state; raise Stop if its URL is invalid."""
    return find_state_target(home.remote).open_state(home.remote) if home.remote else FolderStore(home.state)


def check_store(home: Home) -> StateStore:
    """Return the store of a remote state; raise Stop if it cannot be used or its state was moved."""
    store = open_store(home)
    store.check()
    if (moved := _read_note(store, MOVED)) is not None:
        raise Stop(
            f"state: {store.url}: this state was moved to {moved['to']} by {moved['by']} on {_day(moved['at'])}",
            f"`.venv/bin/muster state use '{moved['to']}'`, or set MUSTER_STATE to it",
        )
    if (moving := _read_note(store, MOVING)) is not None:
        if _is_complete(moving, home):
            store.remove(MOVING)
            return store
        raise Stop(
            f"state: {store.url}: {moving['by']} began on {_day(moving['at'])} to move a state here from "
            f"{moving['from']}, and has not finished",
            "wait, or let them repeat the same `muster state move`; until then, the state is where it was",
        )
    return store


def list_stacks(store: StateStore) -> list[str]:
    """Return the names of the stacks in a store."""
    names = (key.removeprefix(STACKS) for key in store.list_tags(STACKS))
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json") and "/" not in name)


def pull(stack: StackHome) -> str:
    """Refresh the copy of a stack's remote state; return the tag of the state, empty if there is none."""
    store, tags = open_store(stack.home), _read_tags(stack)
    private_folder(private_folder(stack.home.root / "remote") / stack.home.state.name)
    main_key = state_key(stack)
    listed = {
        **{key: tag for key, tag in store.list_tags(main_key).items() if key == main_key},
        **store.list_tags(_key(stack, stack.pulumi_locks) + "/"),
        **_newest(store.list_tags(_key(stack, stack.pulumi_history) + "/")),
        **store.list_tags(files_prefix(stack)),
    }
    copied: dict[str, str] = {}
    for key, tag in listed.items():
        path = stack.home.state / key
        if tags.get(key) == tag and path.exists():
            copied[key] = tag
        elif (content := store.read(key)) is not None:
            replace_file(path, content)
            copied[key] = tag
    for key in {*tags, *_copied_locks(stack)} - set(copied):
        (stack.home.state / key).unlink(missing_ok=True)
    replace_file(_tags_file(stack), json.dumps(copied).encode())
    _place_files(stack, tags, copied)
    return copied.get(main_key, "")


def push_files(stack: StackHome) -> None:
    """Store the files of a stack that the next operator needs, and remove those that it no longer has."""
    store, folder = open_store(stack.home), files_prefix(stack)
    here = {f"{folder}{name}": path.read_bytes() for name, path in _travelling(stack)}
    there = store.list_tags(folder)
    for key, content in here.items():
        if key not in there or store.read(key) != content:
            store.write(key, content)
    for key in set(there) - set(here):
        # Receipts are never removed; a record in the stack's folder ends with its operation.
        if _local_path(stack, key).is_relative_to(stack.folder):
            store.remove(key)


def files_prefix(stack: StackHome) -> str:
    """Return the prefix of the files that travel with a stack."""
    return f"{_FILES}{stack.name}/"


def state_key(stack: StackHome) -> str:
    """Return the key of a stack's state."""
    return _key(stack, stack.state)


def identify_home(home: Home) -> str:
    """Return the id of a MUSTER_HOME on this machine; machines may have the same name, and a copy has another id."""
    file = home.root / "locks" / "home-id"
    if not file.exists():
        replace_file(file, uuid4().hex.encode())
    place = f"{file.read_text()} {_identify_machine()} {home.root.resolve()}"
    return sha256(place.encode()).hexdigest()[:32]


def name_user() -> str:
    """Return the name of the operator."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # A container's user may have no name.
        return str(os.getuid())


def _identify_machine() -> str:
    try:
        return _MACHINE_ID.read_text().strip() or socket.gethostname()
    except OSError:  # A container may have none.
        return socket.gethostname()


def _travelling(stack: StackHome) -> Iterator[tuple[str, Path]]:
    """Yield the files that travel, with their names in the store."""
    receipt = re.compile(rf"{re.escape(stack.name)}-\d{{8}}T\d{{6}}Z\.json")
    for path in sorted(stack.home.receipts.glob("*.json")):
        if receipt.fullmatch(path.name):
            yield f"receipts/{path.name}", path
    for path in sorted(stack.folder.glob("upgrade-from-*.txt")):
        yield f"folder/{path.name}", path


def _local_path(stack: StackHome, key: str) -> Path:
    """Return where a file that travels is in MUSTER_HOME."""
    kind, _, name = key.removeprefix(files_prefix(stack)).partition("/")
    return (stack.home.receipts if kind == "receipts" else stack.folder) / Path(name).name


def _place_files(stack: StackHome, before: dict[str, str], copied: dict[str, str]) -> None:
    """Copy the files of other operators to where commands read them."""
    for key in (key for key in copied if key.startswith(_FILES)):
        path = _local_path(stack, key)
        if not path.exists() or before.get(key) != copied[key]:
            private_folder(path.parent)
            replace_file(path, (stack.home.state / key).read_bytes())
    for key in (key for key in before if key.startswith(_FILES) and key not in copied):
        _local_path(stack, key).unlink(missing_ok=True)


def _newest(history: dict[str, str]) -> dict[str, str]:
    """Return the last records of a history; their names end with the time."""
    records = sorted(key for key in history if key.endswith(".history.json"))
    return {key: history[key] for key in records[-_HISTORY_RECORDS:]}


def _copied_locks(stack: StackHome) -> Iterator[str]:
    yield from (_key(stack, path) for path in stack.pulumi_locks.glob("*.json"))


def _key(stack: StackHome, path: Path) -> str:
    return path.relative_to(stack.home.state).as_posix()


def _tags_file(stack: StackHome) -> Path:
    return stack.home.state / ".muster" / stack.name / _TAGS


def _read_tags(stack: StackHome) -> dict[str, str]:
    try:
        tags: dict[str, str] = json.loads(_tags_file(stack).read_text())
    except (OSError, ValueError):
        return {}
    return tags


def _is_complete(moving: dict[str, str], home: Home) -> bool:
    """Return whether a move to a home's state was verified, and only interrupted before it removed its note.

    Then the home that moved it uses it already, or its old place names this one.
    """
    if moving["home"] == identify_home(home) and home.state_url.exists():
        return home.state_url.read_text().strip() == home.remote
    if "://" not in moving["from"]:
        return False
    moved = _read_note(find_state_target(moving["from"]).open_state(moving["from"]), MOVED)
    return moved is not None and moved["to"] == home.remote


def _read_note(store: StateStore, key: str) -> dict[str, str] | None:
    content = store.read(key)
    return None if content is None else json.loads(content)


def _day(stamp: str) -> str:
    return f"{datetime.fromisoformat(stamp):%Y-%m-%d %H:%M}"
