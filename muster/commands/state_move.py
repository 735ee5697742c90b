"""`muster state move`: move the state of all stacks to a URL, or back into MUSTER_HOME.

The source stays as it is until Pulumi has read the same state from the destination. A move that is interrupted before
that has no effect, and the same command repeats it.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from datetime import UTC, datetime

from infra.engine import lock, pulumi, remote_state
from infra.engine.state_store import FolderStore, StateStore
from infra.engine.stop import BAD_INPUT, FAILED, Stop
from infra.home import STATE_VARIABLE, Home, StackHome
from muster.commands import screen
from muster.commands.stack_spec import find_host_target
from muster.commands.state import write_state_url


def move(url: str) -> None:
    """Move the state of every stack, except those whose nodes run on this machine, and use it from now on."""
    here, there = Home.of(os.environ), Home.of({**os.environ, STATE_VARIABLE: url})
    source = remote_state.check_store(here) if here.remote else remote_state.open_store(here)
    destination = remote_state.open_store(there)
    destination.check()
    if here.remote == there.remote:
        raise Stop(f"state: it is in {source.url} already", "name another place", BAD_INPUT)
    names = [name for name in remote_state.list_stacks(source) if find_host_target(here.stack(name)) is None]
    note = _describe_move(here, source, destination)
    with ExitStack() as locks:
        for name in names:
            stack = here.stack(name)
            locks.enter_context(lock.held(stack, "state move", wait=False, say=screen.say))
            pulumi.wait_for_others(stack, wait=False, say=screen.say)
        _begin(destination, note, names, source)
        for name in names:
            with screen.status(f"moving stack {name}"):
                _copy(source, destination, here.stack(name), there.stack(name))
                _verify(source, destination, here.stack(name), there.stack(name))
        _finish(source, destination, note, here, there, names)
    screen.print_success(f"moved {', '.join(names) or 'no stacks'} from {source.url} to {destination.url}")
    if os.environ.get(STATE_VARIABLE) not in (None, "", url):
        screen.say(f"set {STATE_VARIABLE} to {url}: it still names {os.environ[STATE_VARIABLE]}")


def list_keys(store: StateStore, stack: StackHome) -> dict[str, str]:
    """Return the keys of a stack that move, with their tags: the state, its backup, its history, muster's files."""
    main_key, history = remote_state.state_key(stack), stack.pulumi_history.relative_to(stack.home.state).as_posix()
    state = {key: tag for key, tag in store.list_tags(main_key).items() if key in (main_key, f"{main_key}.bak")}
    return state | store.list_tags(f"{history}/") | store.list_tags(remote_state.files_prefix(stack))


def _describe_move(here: Home, source: StateStore, destination: StateStore) -> dict[str, str]:
    return {
        "home": remote_state.identify_home(here),
        "by": remote_state.name_user(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "from": source.url,
        "to": destination.url,
    }


def _begin(destination: StateStore, note: dict[str, str], names: list[str], source: StateStore) -> None:
    """Mark the destination as incomplete; raise Stop if it has other states of these stacks."""
    earlier = json.loads(destination.read(remote_state.MOVING) or b"null")
    if earlier and (earlier["home"], earlier["from"]) != (note["home"], note["from"]):
        raise Stop(
            f"state: {destination.url}: {earlier['by']} is moving a state here from {earlier['from']}",
            "wait until they have finished, or choose another prefix",
        )
    there = remote_state.list_stacks(destination)
    moved = json.loads(destination.read(remote_state.MOVED) or b"null")
    # What an interrupted move left, or what remained where the state once was, may be overwritten.
    may_overwrite = bool(earlier) or (moved is not None and moved["to"] == source.url)
    if (twice := [name for name in names if name in there]) and not may_overwrite:
        raise Stop(
            f"state: {destination.url} has other states of {', '.join(twice)}; nothing was changed",
            "choose another prefix, or remove those clusters first",
            BAD_INPUT,
        )
    destination.write(remote_state.MOVING, json.dumps(note).encode())


def _copy(source: StateStore, destination: StateStore, stack: StackHome, moved: StackHome) -> None:
    there = list_keys(destination, moved)
    for key in list_keys(source, stack):
        content = source.read(key)
        if content is not None and (key not in there or destination.read(key) != content):
            destination.write(key, content)
    if not stack.home.remote:
        remote_state.push_files(moved)


def _verify(source: StateStore, destination: StateStore, stack: StackHome, moved: StackHome) -> None:
    """Read everything back, with Pulumi, too; raise Stop if anything differs."""
    different = [key for key in list_keys(source, stack) if source.read(key) != destination.read(key)]
    if not different and moved.home.remote:
        remote_state.pull(moved)
    if different or pulumi.export(stack) != pulumi.export(moved):
        raise Stop(
            f"state: what {destination.url} returns for stack {stack.name} differs from what was written "
            f"({', '.join(different) or 'as Pulumi reads it'}); the state is still in {source.url}",
            "repeat the move",
            FAILED,
        )


def _finish(  # noqa: PLR0913, PLR0917  # both sides of the move
    source: StateStore, destination: StateStore, note: dict[str, str], here: Home, there: Home, names: list[str]
) -> None:
    """Switch to the destination; each step leaves one place that works."""
    if here.remote:
        source.write(remote_state.MOVED, json.dumps(note).encode())
    if there.remote:
        write_state_url(here, there.remote)
    else:
        here.state_url.unlink(missing_ok=True)
    destination.remove(remote_state.MOVED)
    destination.remove(remote_state.MOVING)
    if isinstance(source, FolderStore):
        aside = f"moved-{note['at'].replace(':', '')}"
        for name in names:
            for key in list_keys(source, here.stack(name)):
                source.write(f"{aside}/{key}", source.read(key) or b"")
                source.remove(key)
        screen.say(f"the old state is in {source.folder / aside}; delete it when you no longer need it")
