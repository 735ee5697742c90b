"""The lock of a run folder: one writer at a time, taken over when its owner is gone. Standard library only.

`.lock/` has a file for the owner, named by its epoch, a number that only grows. To take the folder is to create the
file of the next epoch, which succeeds for one process only, also on NFS and Lustre; to give it back is to create the
next one for nobody. The owner touches its file every few seconds. Others watch whether that changes, by their own
clock: the clocks of two hosts are never compared.

A new owner removes the earlier files before it reads or sweeps anything. So an old owner that was stopped or cut off
and wakes up later does not find its own file, and then neither publishes nor removes anything (see `fence`).
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from trainer.checkpoint.fence import Fence, FolderLost
from trainer.checkpoint.lock_owner import NOBODY, Owner, explain_takeover, is_running, name_self

LOCK_FOLDER = ".lock"
BEAT_S = 3.0
STALE_S = 30.0
"""An owner whose file has not changed for so long is taken for dead."""
_POLL_S = 0.25
# Errors of filesystems that cannot create hard links.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
_NAME = re.compile(r"\d{8,}")


class FolderInUse(Exception):
    """Raised if another writer has the folder; the message says which one, since when, and how it is known to live."""

    def __init__(self, owner: Owner, sign: str) -> None:
        """`sign` says how the owner is known to live."""
        super().__init__(f"in use by {owner} since {owner.since or 'an unknown time'}; {sign}")
        self.owner = owner


@dataclass(frozen=True)
class _Entry:
    """The newest file of the lock."""

    epoch: int
    owner: Owner
    changed: int
    """When it was last touched, by the filesystem's clock, in nanoseconds."""


class RunLock:
    """The lock of a run folder, held by this process until `release`; a thread touches its file."""

    def __init__(self, path: Path, epoch: int, owner: Owner) -> None:
        self.fence = Fence(str(_name_file(path, epoch)), owner.id, epoch)
        self._path = path
        self._is_lost = False
        self._on_lost: list[Callable[[], None]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="run-lock", daemon=True)
        self._thread.start()

    @classmethod
    def take(
        cls,
        folder: Path,
        owner: Owner | None = None,
        ended_jobs: tuple[str, ...] = (),
        say: Callable[[str], None] = lambda _: None,
    ) -> RunLock:
        """Take the folder or raise FolderInUse; an OSError says why it cannot be written.

        If nothing else tells whether the owner lives, this watches it for STALE_S seconds, and says so before.
        `ended_jobs` are jobs of which Slurm says that they have ended.
        """
        owner = owner or name_self()
        path = folder / LOCK_FOLDER
        path.mkdir(parents=True, exist_ok=True)
        while True:
            current = _read_newest(path)
            if current is not None and not _is_available(current, path, owner, ended_jobs, say):
                continue
            epoch = current.epoch + 1 if current else 1
            if not _create(path, epoch, owner):
                continue
            epochs = _list_epochs(path)
            if epochs[0] > epoch:
                # While this process waited, others had this epoch and the next, and removed the file of this one.
                _name_file(path, epoch).unlink(missing_ok=True)
                continue
            _remove_files(path, epochs[1:])
            return cls(path, epoch, owner)

    def confirm(self) -> bool:
        """Touch the file and return whether this process still owns the folder; an I/O error leaves that open."""
        try:
            self.fence.check()
            os.utime(self.fence.file)
        except (FolderLost, FileNotFoundError):
            self._lose()
        except OSError:
            pass  # the next beat tries again, and whoever publishes or removes something asks for itself
        return not self._is_lost

    def on_lost(self, call: Callable[[], None]) -> None:
        """Call this once another writer has taken over, from the thread that finds out."""
        self._on_lost.append(call)
        if self._is_lost:
            call()

    def release(self, *, leave_no_trace: bool = False) -> None:
        """Give the folder back; `leave_no_trace` also removes the lock's files, for a run that never began."""
        self._ended.set()
        if self._thread is not threading.current_thread():
            self._thread.join()
        with suppress(OSError, FolderLost):
            self.fence.check()
            if leave_no_trace:
                Path(self.fence.file).unlink()
                self._path.rmdir()
            elif _create(self._path, self.fence.epoch + 1, NOBODY):
                _remove_files(self._path, [self.fence.epoch])

    def _beat(self) -> None:
        while not self._is_lost and not self._ended.wait(BEAT_S):
            self.confirm()

    def _lose(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            for call in self._on_lost:
                call()


def _is_available(
    current: _Entry, path: Path, owner: Owner, ended_jobs: tuple[str, ...], say: Callable[[str], None]
) -> bool:
    """Return whether the folder can be taken now, False if the lock has changed meanwhile; raise FolderInUse if not."""
    if current.owner == NOBODY or explain_takeover(current.owner, owner, ended_jobs, is_running):
        return True
    if current.owner.is_later_attempt(owner):
        raise FolderInUse(current.owner, "it is a later attempt of this job")
    say(f"{path.parent} was last used by {current.owner}: watching for up to {STALE_S:g} s whether it still runs")
    unchanged_s, seen = 0.0, time.monotonic()
    while unchanged_s < STALE_S:
        time.sleep(_POLL_S)
        newest = _read_newest(path)
        if newest is None or newest.epoch != current.epoch:
            return False
        if newest.changed != current.changed:
            raise FolderInUse(current.owner, "it has touched the lock just now")
        # A server that does not answer holds up the owner, too: that time does not count.
        now = time.monotonic()
        unchanged_s += min(now - seen, 2 * _POLL_S)
        seen = now
    return True


def _read_newest(path: Path) -> _Entry | None:
    while True:
        epochs = _list_epochs(path)
        if not epochs:
            return None
        # A new owner may have removed it. NFS clients ask the server for the attributes of a file when it is opened.
        with suppress(FileNotFoundError), open(_name_file(path, epochs[0]), "rb") as file:
            return _Entry(epochs[0], Owner.parse(file.read()), os.fstat(file.fileno()).st_mtime_ns)


def _list_epochs(path: Path) -> list[int]:
    """Return the epochs of the files in the lock, the newest first."""
    # NFS clients cache listings for up to a minute; a touched folder is read again.
    os.utime(path)
    return sorted((int(name) for name in os.listdir(path) if _NAME.fullmatch(name)), reverse=True)


def _name_file(path: Path, epoch: int) -> Path:
    return path / f"{epoch:08d}"


def _remove_files(path: Path, epochs: list[int]) -> None:
    for epoch in epochs:
        _name_file(path, epoch).unlink(missing_ok=True)


def _create(path: Path, epoch: int, owner: Owner) -> bool:
    """Create the file of an epoch, complete from the start; return False if another process was faster."""
    unnamed = path / f"new-{secrets.token_hex(8)}"
    try:
        unnamed.write_bytes(json.dumps(asdict(owner)).encode())
        _link(unnamed, _name_file(path, epoch))
    except FileExistsError:
        # NFS may lose the answer to a link that succeeded, and report the repeated request.
        return unnamed.stat().st_nlink > 1
    finally:
        unnamed.unlink(missing_ok=True)
    return True


def _link(source: Path, name: Path) -> None:
    try:
        os.link(source, name)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        reason = f"its filesystem cannot create hard links, which the lock needs ({error.strerror})"
        raise OSError(error.errno, reason, str(name)) from None
