"""The locks that allow one command at a time per stack: muster's own, and that of Pulumi."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from infra.engine import remote_lock, remote_state
from infra.engine.command_line import format_command
from infra.engine.process import process_lives
from infra.engine.stop import Stop
from infra.home import StackHome, private_folder

_POLL_S = 0.2
# The time that a killed command's supervisor needs to end the remaining processes.
_AFTERMATH_S = 10.0


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock."""

    pid: int
    since: datetime
    command: str = "pulumi"
    hostname: str = ""

    @property
    def alive(self) -> bool:
        return process_lives(self.pid)

    def __str__(self) -> str:
        host = f" on {self.hostname}" if self.hostname and self.hostname != socket.gethostname() else ""
        return f"`{self.command}` (process {self.pid}{host}, since {self.since.astimezone():%H:%M:%S})"


@contextmanager
def held(stack: StackHome, command: str, *, wait: bool, say: Callable[[str], None]) -> Iterator[int]:
    """Hold the stack's lock; yield its descriptor, so that the supervisor can hold it after `muster` is killed.

    If operators share the state, this holds their lock, too.
    """
    with (
        held_here(stack, command, wait=wait, say=say) as descriptor,
        _held_remotely(stack, command, wait=wait, say=say),
    ):
        yield descriptor


@contextmanager
def held_here(stack: StackHome, command: str, *, wait: bool, say: Callable[[str], None]) -> Iterator[int]:
    """Hold the stack's lock of this MUSTER_HOME."""
    private_folder(stack.lock.parent)
    descriptor = os.open(stack.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _acquire(descriptor, stack, wait=wait, say=say)
        note = {"pid": os.getpid(), "since": datetime.now(UTC).isoformat(), "command": f"muster {command}"}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(note).encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def stale(holders: list[Holder], hostname: str) -> bool:
    """Return whether all holders are dead processes of this machine."""
    return bool(holders) and all(h.hostname == hostname and not h.alive for h in holders)


def find_stale(stack: StackHome) -> Holder | None:
    """Return the holder of Pulumi's lock if it is dead.

    Of a remote state none counts as dead: another operator's machine may have the same name.
    """
    holders = pulumi_holders(stack)
    return holders[0] if not stack.home.remote and stale(holders, socket.gethostname()) else None


def pulumi_holders(stack: StackHome) -> list[Holder]:
    """Return the processes that hold Pulumi's lock of a stack."""
    holders = []
    for file in stack.pulumi_locks.glob("*.json"):
        with suppress(OSError, ValueError, KeyError):
            holders.append(_from_pulumi(json.loads(file.read_text())))
    return holders


def is_held_since(stack: StackHome, when: datetime) -> bool:
    """Return whether a process of this machine has held the lock of muster or Pulumi since `when`, in whole seconds."""
    try:
        ours = _parse_note(stack.lock.read_bytes())
    except OSError:
        ours = None
    holders = [holder for holder in (ours, *pulumi_holders(stack)) if holder]
    return any(holder.alive and holder.since < when + timedelta(seconds=1) for holder in holders)


def in_use_error(stack: StackHome, holder: Holder) -> Stop:
    """Return the error for a stack whose lock another process holds."""
    if stack.home.remote and holder.command == "pulumi":
        return remote_lock.in_use_error(stack, str(holder))
    return Stop(
        f"another command is using stack {stack.name}: {holder}",
        remote_lock.advise_waiting(stack),
    )


@contextmanager
def _held_remotely(stack: StackHome, command: str, *, wait: bool, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock that the operators of a remote state share, with a fresh copy of the state."""
    if not stack.home.remote:
        yield
        return
    note = remote_lock.acquire(stack, command, wait=wait, say=say)
    try:
        remote_state.pull(stack)
        yield
    finally:
        try:
            remote_lock.release(stack, note)
        except Stop as failed:
            unlock = format_command("state unlock", stack.name)
            say(f"the lock of stack {stack.name} was not released: {failed.what}; later: `{unlock}`")


def _acquire(descriptor: int, stack: StackHome, *, wait: bool, say: Callable[[str], None]) -> None:
    began, announced = time.monotonic(), False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = _parse_note(os.pread(descriptor, 4096, 0))
        # The holder writes its note just after it takes the lock; until then its name is unknown.
        aftermath = holder is None or not holder.alive
        if not wait and not (aftermath and time.monotonic() - began < _AFTERMATH_S):
            raise in_use_error(stack, holder or Holder(0, datetime.now(UTC), "muster"))
        if wait and holder and not announced:
            say(f"waiting for {holder}")
            announced = True
        time.sleep(_POLL_S)


def _parse_note(content: bytes) -> Holder | None:
    try:
        note = json.loads(content)
        return Holder(note["pid"], datetime.fromisoformat(note["since"]), note["command"])
    except (ValueError, KeyError):
        return None


def _from_pulumi(lock: dict[str, object]) -> Holder:
    # Pulumi writes nanoseconds; datetime reads at most microseconds.
    stamp = str(lock["timestamp"])[:19] + "+00:00"
    return Holder(int(str(lock["pid"])), datetime.fromisoformat(stamp), "pulumi", str(lock["hostname"]))
