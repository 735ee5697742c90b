"""A one-dimensional array in a file, read slice by slice: never mapped, so that a damaged file raises an error."""

from __future__ import annotations

import os
import resource
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from weakref import ReferenceType, ref

import numpy as np
from numpy.typing import NDArray

from trainer.config.errors import ConfigError, ConfigProblem
from trainer.data.remote import retry
from trainer.life.cause import classify_system_error

_OPEN_TRIES = 10
_MOST_FILES = 65_536


class Sliceable(Protocol):
    """Values of which slices are used: an array in memory or in a file."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> NDArray[Any]: ...


class FileArray:
    """The values of a file as an array of which only slices can be read.

    The kernel ends a process that reads a mapped file behind its end or on a failing disk (SIGBUS), without a word
    about the file. Here a short file is a ConfigError that names it, and errors of the filesystem are retried. A file
    stays readable after it was deleted, as long as it is open.
    """

    def __init__(
        self, locate: Callable[[], Path], dtype: np.dtype[Any], length: int, *, offset: int = 0, fix: str
    ) -> None:
        """`locate` returns the file when it has to be opened; `length` counts values from the byte `offset` on.

        `fix` says what to do if the file is short or missing.
        """
        self._locate = locate
        self._dtype = dtype
        self._width = dtype.itemsize
        self._length = length
        self._offset = offset
        self._fix = fix
        self._file: _OpenFile | None = None

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice, /) -> NDArray[Any]:
        start, stop, _ = part.indices(self._length)
        values = np.empty(max(0, stop - start), self._dtype)
        if values.size:
            self.read_into(values.view(np.uint8).data, start)
        return values

    def read_into(self, buffer: memoryview, start: int) -> None:
        """Fill a buffer of bytes with the values from `start` on."""
        file = self._file
        if file is not None:
            try:
                if os.preadv(file.descriptor, (buffer,), self._offset + start * self._width) == len(buffer):
                    return
            except OSError:
                pass  # raised again below unless it passes
            # Opening it again replaces a stale handle, and finds a whole file that has replaced a short one.
            self.forget()
        retry(lambda: self._read(buffer, start), is_transient=lambda error: isinstance(error, _UnreadableFile))

    def forget(self) -> None:
        """Close the file once no thread reads from it; the next read opens it again."""
        self._file = None

    def _read(self, buffer: memoryview, start: int) -> None:
        """Fill the buffer or raise an error that names the file, which is closed then."""
        file = self._file or self._open()
        try:
            if file.read(buffer, self._offset + start * self._width) == len(buffer):
                return
            size = file.measure()
        except OSError as error:
            self.forget()
            raise _describe_error(error, file.path) from error
        self.forget()
        raise self._explain_short(file.path, size, start, start + len(buffer) // self._width)

    def _open(self) -> _OpenFile:
        # Without a lock: a download may take minutes, and two threads that open the same file do no harm.
        for _ in range(_OPEN_TRIES):
            path = self._locate()
            try:
                self._file = file = _OpenFile(path)
            except FileNotFoundError:
                continue  # another process may have removed it from a full cache at this moment
            except OSError as error:
                raise _describe_error(error, path) from error
            _OPEN_FILES.add(self)
            return file
        raise ConfigError([ConfigProblem("data.path", f"{path} was removed while it was in use", self._fix)])

    def _explain_short(self, path: Path, size: int, start: int, stop: int) -> ConfigError:
        expected, end = (self._offset + values * self._width for values in (self._length, stop))
        message = f"{path} became shorter while it was in use: it has {size} bytes instead of {expected}, and the next "
        message += f"read needs values {start} to {stop - 1}, which end at byte {end}"
        return ConfigError([ConfigProblem("data.path", message, self._fix)])


class _UnreadableFile(OSError):
    """Raised if the filesystem fails, which a retry may cure."""


class _OpenFile:
    """A file that is closed when nobody uses it any more, so that no thread reads from a closed descriptor."""

    def __init__(self, path: Path) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.path = path

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)

    def read(self, buffer: memoryview, position: int) -> int:
        """Fill the buffer from a position on; return the bytes read, which are fewer only if the file ends before."""
        done = 0
        while done < len(buffer):
            received = os.preadv(self.descriptor, [buffer[done:]], position + done)
            if not received:
                break
            done += received
        return done

    def measure(self) -> int:
        """Return the size of the file."""
        return os.fstat(self.descriptor).st_size


class _OpenFiles:
    """The arrays of this process whose files are open; if there are too many, the file that was opened first is closed.

    The order of use would cost a lock in each read, and samples come from all files of a data set in turn.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._arrays: deque[ReferenceType[FileArray]] = deque()

    def add(self, array: FileArray) -> None:
        """Record that an array has opened its file."""
        self._arrays.append(ref(array))
        while len(self._arrays) > self._limit:
            oldest = self._arrays.popleft()()
            if oldest is not None:
                oldest.forget()


def _describe_error(error: OSError, path: Path) -> OSError:
    """Return the error with the file's name; as one that a retry may cure if it is not about the file itself."""
    kind = _UnreadableFile if classify_system_error(error) else OSError
    return kind(error.errno, error.strerror, str(path))


def raise_file_limit() -> int:
    """Raise the limit of open files of this process if that is allowed, and return it.

    The usual one is 1024, because programs that wait with select() can have no more. More shards than half of it would
    be opened again for almost every random sample.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = choose_file_limit(soft, hard)
    if soft != resource.RLIM_INFINITY and limit > soft:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError):
            return soft
    return limit


def choose_file_limit(soft: int, hard: int) -> int:
    """Return the limit to use, given the present one and the largest one that is allowed."""
    if resource.RLIM_INFINITY in (soft, hard):
        return _MOST_FILES if soft == resource.RLIM_INFINITY else max(soft, _MOST_FILES)
    return max(soft, min(hard, _MOST_FILES))


# Sockets and other files need the other half.
_OPEN_FILES = _OpenFiles(raise_file_limit() // 2)
