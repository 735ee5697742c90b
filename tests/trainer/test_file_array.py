"""Arrays in files: what is read, and what happens when the file changes or its filesystem fails meanwhile."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from trainer.config.errors import ConfigError
from trainer.data import file_array, remote
from trainer.data.file_array import FileArray, choose_file_limit, raise_file_limit
from trainer.life.cause import Cause, classify

COUNT = 1000
DTYPE = np.dtype("<u2")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "array").write_bytes(values().tobytes())
    return tmp_path / "array"


def values() -> np.ndarray:
    return np.arange(COUNT, dtype=DTYPE)


def open_array(path: Path, offset: int = 0) -> FileArray:
    return FileArray(lambda: path, DTYPE, COUNT - offset // DTYPE.itemsize, offset=offset, fix="copy it again")


def fail_reads(monkeypatch: pytest.MonkeyPatch, error: int, times: float) -> list[int]:
    """Let the next reads fail with this error; return a list that grows by each failure."""
    read = os.preadv
    failures: list[int] = []

    def preadv(descriptor: int, buffers: list[memoryview], position: int) -> int:
        if len(failures) < times:
            failures.append(descriptor)
            raise OSError(error, os.strerror(error))
        return read(descriptor, buffers, position)

    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(remote, "_RETRY_DELAYS_S", (0.0,) * 6)
    return failures


@pytest.mark.parametrize("part", [slice(0, 3), slice(5, 5), slice(990, None), slice(None), slice(998, 2000)])
@pytest.mark.parametrize("offset", [0, 20])
def test_slices_are_those_of_an_array_in_memory(path: Path, part: slice, offset: int) -> None:
    array, expected = open_array(path, offset), values()[offset // DTYPE.itemsize :]
    assert len(array) == len(expected)
    assert array[part].tolist() == expected[part].tolist()
    assert array[part].dtype == DTYPE


def test_a_read_that_returns_less_is_continued(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda descriptor, buffers, at: read(descriptor, [buffers[0][:7]], at))
    assert open_array(path)[10:50].tolist() == values()[10:50].tolist()


@pytest.mark.fault(37)
@pytest.mark.parametrize("is_open", [True, False])
def test_a_file_that_becomes_shorter_is_named_with_the_place(path: Path, is_open: bool) -> None:
    array = open_array(path)
    if is_open:
        assert array[999:].tolist() == [999]
    os.truncate(path, 100)
    with pytest.raises(ConfigError) as caught:
        array[40:60]
    assert str(caught.value) == (
        f"data.path: {path} became shorter while it was in use: it has 100 bytes instead of 2000, and the next read "
        "needs values 40 to 59, which end at byte 120; copy it again"
    )
    assert classify(caught.value) is Cause.DATA
    assert array[:50].tolist() == list(range(50)), "what is left can still be read"


def test_a_whole_file_that_replaces_a_short_one_is_read(path: Path) -> None:
    array = open_array(path)
    assert array[:1].tolist() == [0]
    os.truncate(path, 100)
    path.with_name("copy").write_bytes(values().tobytes())
    path.with_name("copy").rename(path)
    assert array[40:60].tolist() == list(range(40, 60))


@pytest.mark.fault(37)
def test_a_deleted_file_stays_readable_and_a_missing_one_is_named(path: Path) -> None:
    array = open_array(path)
    assert array[:1].tolist() == [0]
    path.unlink()
    assert array[:].tolist() == values().tolist()
    with pytest.raises(ConfigError, match=rf"data.path: {path} was removed while it was in use; copy it again"):
        open_array(path)[:1]


@pytest.mark.parametrize("error", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_errors_of_the_filesystem_are_retried_with_the_file_opened_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: int
) -> None:
    opened: list[Path] = []

    def locate() -> Path:
        opened.append(path)
        return path

    failures = fail_reads(monkeypatch, error, times=6)
    assert FileArray(locate, DTYPE, COUNT, fix="copy it again")[5:8].tolist() == [5, 6, 7]
    assert (len(failures), len(opened)) == (6, 7)
    assert f"{os.strerror(error)}: '{path}'; trying again" in capsys.readouterr().err


def test_an_error_that_does_not_pass_is_one_of_the_filesystem(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_reads(monkeypatch, errno.EIO, times=float("inf"))
    with pytest.raises(OSError, match=f"Input/output error: '{path}'") as caught:
        open_array(path)[:1]
    assert classify(caught.value) is Cause.STORAGE
    assert not classify(caught.value).is_permanent


def test_few_files_are_open_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, count_files: Callable[[], int]
) -> None:
    monkeypatch.setattr(file_array, "_OPEN_FILES", file_array._OpenFiles(3))
    arrays = [open_array(path) for _ in range(20)]
    for _ in range(2):
        for number, array in enumerate(arrays):
            assert array[number : number + 1].tolist() == [number]
            assert count_files() <= 3
    del array
    arrays.clear()
    assert count_files() == 0


def test_threads_read_while_others_close_files(
    path: Path, monkeypatch: pytest.MonkeyPatch, count_files: Callable[[], int]
) -> None:
    """No thread reads from a descriptor that another one has closed, or that stands for another file by then."""
    limit, threads = 3, 4
    monkeypatch.setattr(file_array, "_OPEN_FILES", file_array._OpenFiles(limit))
    paths = []
    for number in range(20):
        paths.append(path.with_name(f"array-{number}"))
        paths[-1].write_bytes((values() + number).tobytes())
    arrays = [open_array(path) for path in paths]

    def read(start: int) -> bool:
        numbers = [(start + index * 7) % len(arrays) for index in range(500)]
        return all(arrays[number][number : number + 2].tolist() == [2 * number, 2 * number + 1] for number in numbers)

    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(read, range(threads))) == [True] * threads
    assert sum(array._file is not None for array in arrays) <= limit + threads


@pytest.mark.parametrize(
    ("soft", "hard", "limit"),
    [
        (1024, 4096, 4096),
        (1024, 1_048_576, 65_536),
        (1024, resource.RLIM_INFINITY, 65_536),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 65_536),
        (100_000, 1_048_576, 100_000),
        (1024, 1024, 1024),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_allowed(soft: int, hard: int, limit: int) -> None:
    assert choose_file_limit(soft, hard) == limit


def test_this_process_may_open_more_files_afterwards() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        assert raise_file_limit() == choose_file_limit(512, hard) > 512
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == choose_file_limit(512, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def count_files(path: Path) -> Callable[[], int]:
    """Return a function that counts how often this process has the file open."""

    def count() -> int:
        links = Path("/proc/self/fd").iterdir()
        return sum(1 for link in links if link.is_symlink() and os.readlink(link) == str(path))

    return count
