"""Writing a stack file, which belongs to the user: all or nothing, and mode, owner and links stay."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cluster.spec.stack_file import replace_stack_file
from tests.full_disk import fill_disk

OLD, NEW = "config: {}  # of the user\n" * 100, "config: {}  # ä new\n" * 200


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "Pulumi.toy.yaml"
    path.write_text(OLD, encoding="utf-8")
    return path


@contextmanager
def limited_file_size(size: int) -> Iterator[None]:
    """Let every write beyond a size fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_file_has_the_new_text_and_its_mode(file: Path) -> None:
    file.chmod(0o640)
    replace_stack_file(file, NEW)
    assert file.read_text(encoding="utf-8") == NEW
    assert file.stat().st_mode & 0o7777 == 0o640
    assert os.listdir(file.parent) == [file.name]


def test_write_that_fails_half_way_leaves_the_old_file(file: Path) -> None:
    with pytest.raises(OSError, match="File too large"), limited_file_size(1000):
        replace_stack_file(file, NEW)
    assert file.read_text(encoding="utf-8") == OLD
    assert os.listdir(file.parent) == [file.name]


def test_full_disk_that_is_noticed_last_leaves_the_old_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_disk(monkeypatch, file)
    with pytest.raises(OSError, match="No space left"):
        replace_stack_file(file, NEW)
    assert file.read_text(encoding="utf-8") == OLD
    assert os.listdir(file.parent) == [file.name]


def test_old_file_stays_complete_until_the_new_one_is(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill at any time before the replacement leaves the old text."""
    seen: list[str] = []
    sync = os.fsync

    def look(descriptor: int) -> None:
        seen.append(file.read_text(encoding="utf-8"))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    replace_stack_file(file, NEW)
    assert seen == [OLD]


def test_link_stays_a_link_to_the_changed_file(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "stacks" / file.name
    link.parent.mkdir()
    link.symlink_to(Path("..") / file.name)
    replace_stack_file(link, NEW)
    assert link.readlink() == Path("..") / file.name
    assert file.read_text(encoding="utf-8") == NEW
    assert os.listdir(link.parent) == [link.name]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_file_of_another_user_stays_theirs(file: Path) -> None:
    os.chown(file, 2002, 3003)
    file.chmod(0o600)
    replace_stack_file(file, NEW)
    assert (file.stat().st_uid, file.stat().st_gid, file.stat().st_mode & 0o7777) == (2002, 3003, 0o600)
