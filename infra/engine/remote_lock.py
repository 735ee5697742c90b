"""The lock of a stack whose state operators share: an object next to the state that only one command can create.

Pulumi's own lock covers only its runs. This one covers the whole command: between two runs of Pulumi, teardown removes
resources by label, and another operator's `up` must not create new ones meanwhile.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from uuid import uuid4

from infra.engine import remote_state
from infra.engine.command_line import format_command
from infra.engine.process import process_lives
from infra.engine.state_store import StateStore
from infra.engine.stop import Stop
from infra.home import StackHome

_POLL_S = 2.0
_RETRY_S = 0.2


@dataclass(frozen=True)
class RemoteHolder:
    """The command that holds the lock of a stack."""

    id: str
    home: str
    """Identifies the MUSTER_HOME and its machine, because machines may have the same name."""
    command: str
    user: str
    hostname: str
    pid: int
    since: str
    """In ISO format."""

    def __str__(self) -> str:
        since = f"{datetime.fromisoformat(self.since).astimezone():%Y-%m-%d %H:%M:%S}"
        return f"`{self.command}` by {self.user} on {self.hostname} (process {self.pid}, since {since})"


def acquire(stack: StackHome, command: str, *, wait: bool, say: Callable[[str], None]) -> RemoteHolder:
    """Acquire the lock of a stack and return its note; the caller must hold the stack's lock of this machine."""
    store = remote_state.check_store(stack.home)
    note = RemoteHolder(
        id=uuid4().hex,
        home=remote_state.identify_home(stack.home),
        command=f"muster {command}",
        user=remote_state.name_user(),
        hostname=socket.gethostname(),
        pid=os.getpid(),
        since=datetime.now(UTC).isoformat(),
    )
    announced = False
    while not store.create(key(stack), json.dumps(asdict(note)).encode()):
        holder = read(store, stack)
        if holder is None:
            # It was released just now, or another command's write of it is under way.
            time.sleep(_RETRY_S)
            continue
        if holder.home == note.home:
            # Its process and everything that it started are gone, or this machine's lock would not be free.
            say(f"the last run was killed ({holder}): taking over its lock")
            remove_pulumi_locks(store, stack, since=holder.since)
            store.remove(key(stack))
            continue
        if not wait:
            raise in_use_error(stack, str(holder))
        if not announced:
            say(f"waiting for {holder}")
            announced = True
        time.sleep(_POLL_S)
    return note


def release(stack: StackHome, note: RemoteHolder) -> None:
    """Store the files that the next operator needs and release the lock, unless someone else has it now."""
    store = remote_state.open_store(stack.home)
    if (holder := read(store, stack)) is None or holder.id != note.id:
        return
    remote_state.push_files(stack)
    # A killed Pulumi does not remove its lock.
    remove_pulumi_locks(store, stack, since=note.since)
    store.remove(key(stack))


def read(store: StateStore, stack: StackHome) -> RemoteHolder | None:
    """Return who holds the lock of a stack; None if nobody does."""
    content = store.read(key(stack))
    if content is None:
        return None
    try:
        holder = RemoteHolder(**json.loads(content))
        datetime.fromisoformat(holder.since)
        return holder
    except (ValueError, TypeError):
        return RemoteHolder("", "", "an unknown command", "unknown", "unknown", 0, datetime.now(UTC).isoformat())


def break_lock(store: StateStore, stack: StackHome) -> None:
    """Remove the locks of muster and of Pulumi, whoever holds them."""
    for pulumi_key in _pulumi_locks(store, stack):
        store.remove(pulumi_key)
    store.remove(key(stack))


def in_use_error(stack: StackHome, holder: str) -> Stop:
    """Return the error for a stack that another operator is using."""
    unlock = format_command("state unlock", stack.name)
    return Stop(
        f"another command is using stack {stack.name}: {holder}",
        f"{advise_waiting(stack)}; if that process is gone, release its lock with `{unlock}`",
    )


def advise_waiting(stack: StackHome) -> str:
    """Return what to do while another command is using a stack; only `up` can wait itself."""
    wait = format_command("up", stack.name, "WAIT=1")
    return f"wait for it, then repeat your command; if that is `up`, `{wait}` waits for you"


def key(stack: StackHome) -> str:
    """Return the key of a stack's lock."""
    return f".muster/locks/{stack.name}.json"


def remove_pulumi_locks(store: StateStore, stack: StackHome, since: str) -> None:
    """Remove the locks of this machine's Pulumi processes that were started since then and have ended."""
    began = int(datetime.fromisoformat(since).timestamp())
    for pulumi_key in _pulumi_locks(store, stack):
        if (content := store.read(pulumi_key)) is not None and _has_ended(content, began):
            store.remove(pulumi_key)


def _has_ended(pulumi_lock: bytes, began: int) -> bool:
    """Return whether the process of a lock ran on this machine since then; an unreadable lock counts as held."""
    try:
        lock = json.loads(pulumi_lock)
        # Pulumi writes nanoseconds; datetime reads at most microseconds.
        started = datetime.fromisoformat(f"{lock['timestamp'][:19]}+00:00").timestamp()
        ended = lock["hostname"] == socket.gethostname() and not process_lives(int(lock["pid"]))
    except (ValueError, KeyError, TypeError):
        return False
    return ended and started >= began


def _pulumi_locks(store: StateStore, stack: StackHome) -> list[str]:
    folder = stack.pulumi_locks.relative_to(stack.home.state).as_posix()
    return list(store.list_tags(f"{folder}/"))
