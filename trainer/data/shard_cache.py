"""Local copies of remote shards, shared by all processes of a node and verified when they are downloaded."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.data.index import Shard, publish
from trainer.data.remote import RemoteFolder, TransientError, retry

# The disks of a cloud machine are mounted here (docs/bootstrap.md).
_SCRATCH = Path("/local")
_GB = 10**9
# A download writes all the time; one that has not for this long has ended, on whatever node it was.
_ABANDONED_S = 3600.0
# The checksum becomes a file name, and a remote index may contain anything.
_CHECKSUM = re.compile("[0-9a-f]{64}")


class ShardCache:
    """A folder of shards that are named after their checksums: equal shards of different folders are stored once.

    A file has its final name only when it is complete and its checksum is right. One process at a time downloads a
    shard; others that need it wait. Nodes that share the folder may download the same shard at the same time, because
    locks need not reach other nodes; each writes a file of its own.
    """

    def __init__(self, folder: Path, limit_bytes: int = 0) -> None:
        """`limit_bytes` is the size above which the least recently used shards are removed; 0 removes none."""
        self._folder = folder
        self._limit = limit_bytes
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            message = f"{folder} cannot be written ({error.strerror})"
            raise ConfigError(
                [ConfigProblem("data.cache", message, "choose a folder on a disk of the node")]
            ) from error

    def get(self, remote: RemoteFolder, shard: Shard, size: int) -> Path:
        """Return the local copy of a shard of `size` bytes; download it if there is none."""
        path = self._locate(shard)
        if not _is_complete(path, size):
            with (self._folder / f"{path.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not _is_complete(path, size):
                    self._download(remote, shard, size, path)
        with suppress(OSError):
            os.utime(path)  # the time of the last use, by which shards are removed
        return path

    def get_ahead(self, remote: RemoteFolder, shard: Shard, size: int) -> bool:
        """Download a shard unless it is present or another process downloads it; return whether it is present now."""
        path = self._locate(shard)
        if _is_complete(path, size):
            return True
        with (self._folder / f"{path.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if not _is_complete(path, size):
                self._download(remote, shard, size, path)
        return True

    def _locate(self, shard: Shard) -> Path:
        if not _CHECKSUM.fullmatch(shard.sha256):
            message = f"index.json has {shard.sha256!r} as the checksum of {shard.file}"
            raise ConfigError([ConfigProblem("data.path", message, "prepare the folder again")])
        return self._folder / f"{shard.sha256}.bin"

    def _download(self, remote: RemoteFolder, shard: Shard, size: int, path: Path) -> None:
        partial = path.with_name(f"{path.stem}.{socket.gethostname()}-{os.getpid()}.partial")
        try:
            self._reserve(partial, size)
            digest = retry(_Download(remote, shard.file, size, partial).run)
            if digest != shard.sha256:
                # It may have been damaged on its way; a second transfer shows whether the stored file is damaged.
                digest = retry(_Download(remote, shard.file, size, partial).run)
            if digest != shard.sha256:
                damage = f"has the checksum {digest[:16]}... instead of {shard.sha256[:16]}..."
                raise _describe_damage(remote, shard.file, damage)
            publish(partial, path)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                advice = f"no space for the {size / _GB:.3g} GB of {shard.file}; use another disk for data.cache"
                raise OSError(error.errno, f"{error.strerror}: {advice}", str(self._folder)) from error
            raise
        finally:
            partial.unlink(missing_ok=True)

    def _reserve(self, partial: Path, size: int) -> None:
        """Create the file of a download in its full size; remove the least recently used shards to make room for it.

        Processes that have opened a removed shard can still read it.
        """
        with (self._folder / "room.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _remove_abandoned(partial)
            with partial.open("wb") as file:
                file.truncate(size)
            if not self._limit:
                return
            excess = sum(length for _, length, _ in _list_files(self._folder)) - self._limit
            for _, length, file_path in sorted(_list_files(self._folder, "*.bin")):
                if excess <= 0:
                    break
                file_path.unlink(missing_ok=True)
                excess -= length


class _Download:
    """A download that continues where the connection broke off."""

    def __init__(self, remote: RemoteFolder, file: str, size: int, partial: Path) -> None:
        self._remote = remote
        self._file = file
        self._size = size
        self._partial = partial
        self._received = 0
        self._digest = sha256()
        self._empty_at = -1
        """Offset at which an answer had no bytes."""

    def run(self) -> str:
        """Receive the remaining bytes and return the checksum of the whole file."""
        before = self._received
        with self._partial.open("r+b") as partial:
            partial.seek(self._received)
            for block in self._remote.read_blocks(self._file, self._received):
                partial.write(block)
                self._digest.update(block)
                self._received += len(block)
            partial.flush()
            os.fsync(partial.fileno())
        if self._received < self._size and self._received != self._empty_at:
            # The connection was closed. If that happens twice without a byte in between, the file ends here.
            self._empty_at = before if self._received == before else -1
            raise TransientError(
                f"{self._remote.url}/{self._file}: the answer broke off after {self._received} of {self._size} bytes"
            )
        if self._received != self._size:
            damage = f"has {self._received} bytes instead of {self._size}"
            raise _describe_damage(self._remote, self._file, damage)
        return self._digest.hexdigest()


def default_cache() -> Path:
    """Return the folder for shards of this user: on the node's own disks, or in the folder for temporary files.

    Anyone can create a folder there, and whoever owns it could replace the shards, so it must be this user's.
    """
    root = _SCRATCH if _SCRATCH.is_mount() and os.access(_SCRATCH, os.W_OK) else Path(tempfile.gettempdir())
    folder = root / f"muster-shards-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        message = f"{folder}, the default, is not a folder of this user"
        raise ConfigError([ConfigProblem("data.cache", message, "set data.cache to a folder on a disk of the node")])
    folder.chmod(0o700)
    return folder


def _list_files(folder: Path, *patterns: str) -> Iterator[tuple[int, int, Path]]:
    """Yield the time of the last use, the size and the path of each shard, complete or not."""
    for pattern in patterns or ("*.bin", "*.partial"):
        for path in folder.glob(pattern):
            with suppress(FileNotFoundError):  # another process has removed it
                status = path.stat()
                yield status.st_mtime_ns, status.st_size, path


def _remove_abandoned(partial: Path) -> None:
    """Remove the files of downloads whose process was killed, given the file of one whose lock this process holds."""
    host, checksum = socket.gethostname(), partial.name.partition(".")[0]
    for _, _, path in _list_files(partial.parent, "*.partial"):
        other, _, owner = path.name.removesuffix(".partial").partition(".")
        # Locks need not reach other nodes, so files of other nodes must be old too.
        is_ours = owner.rpartition("-")[0] == host
        with suppress(OSError):
            if not is_ours and time.time() - path.stat().st_mtime < _ABANDONED_S:
                continue
            with (partial.parent / f"{other}.bin.lock").open("w") as lock:
                if other != checksum:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def _is_complete(path: Path, size: int) -> bool:
    with suppress(OSError):
        return path.stat().st_size == size
    return False


def _describe_damage(remote: RemoteFolder, file: str, damage: str) -> ConfigError:
    message = f"{remote.url}/{file} is not the file that index.json describes: it {damage}"
    return ConfigError([ConfigProblem("data.path", message, "upload the folder again")])
