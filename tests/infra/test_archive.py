"""The archive of a backup: complete or refused, never half of one that looks whole."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from infra import archive
from infra.archive import ArchiveError, Manifest

MANIFEST = Manifest("2026-11-17T18:00:00+00:00", "0.1.0", "demo", "demo", "24.11", "== total\n1", {"shared": 7})
SHARED = archive.storage_part("shared")
PARTS = {archive.CONTROLLER: [b"queue", b" and accounting"], SHARED: [os.urandom(700), b"x" * 1300]}


def ignore(_count: int) -> None:
    """Show no progress."""


def write(path: Path, manifest: Manifest = MANIFEST) -> Path:
    with archive.create_archive(path, ignore) as writer:
        for name, chunks in PARTS.items():
            writer.add(name, chunks)
        writer.finish(manifest)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "backups" / f"demo-1{archive.SUFFIX}")


def test_parts_and_manifest_come_back(path: Path) -> None:
    assert archive.verify_archive(path, ignore) == archive.read_manifest(path) == MANIFEST
    assert b"".join(archive.read_part(path, SHARED, ignore)) == b"".join(PARTS[SHARED])
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_only_the_owner_can_read_it(path: Path) -> None:
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_an_existing_folder_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    assert write(shared / "a.tar").stat().st_mode & 0o777 == 0o600
    assert shared.stat().st_mode & 0o7777 == 0o1777


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArchiveError, match=r"file/a\.tar cannot be written: File exists"):
        write(tmp_path / "file" / "a.tar")


def test_a_stranger_can_check_it_without_muster(path: Path, tmp_path: Path) -> None:
    subprocess.run(["tar", "-xf", path, "-C", tmp_path], check=True)
    subprocess.run(["sha256sum", "-c", "--quiet", archive.SUMS], cwd=tmp_path, check=True)


def test_a_changed_byte_of_any_member_is_detected(path: Path) -> None:
    whole = path.read_bytes()
    with tarfile.open(path) as opened:
        members = opened.getmembers()
    assert [member.name for member in members] == [*PARTS, archive.MANIFEST, archive.SUMS]
    for member in members:
        for offset in (member.offset, member.offset_data, member.offset_data + member.size - 1):
            changed = bytearray(whole)
            changed[offset] ^= 1
            path.write_bytes(changed)
            with pytest.raises(ArchiveError, match="is damaged or incomplete"):
                archive.verify_archive(path, ignore)


def test_a_truncated_archive_is_detected(path: Path) -> None:
    whole = path.read_bytes()
    # The last two blocks only mark the end of a tar file.
    for size in range(0, len(whole) - 2 * 512, 97):
        path.write_bytes(whole[:size])
        with pytest.raises(ArchiveError, match="is damaged or incomplete"):
            archive.verify_archive(path, ignore)


def test_an_archive_without_a_part_of_its_manifest_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tar", replace(MANIFEST, storage={"shared": 7, "home": 1}))
    with pytest.raises(ArchiveError, match=r"storage-home\.tar\.gz is missing"):
        archive.verify_archive(path, ignore)


@pytest.mark.parametrize("number", [0, 2])
def test_another_format_is_refused_with_the_version_that_wrote_it(tmp_path: Path, number: int) -> None:
    path = write(tmp_path / "a.tar", replace(MANIFEST, format=number, muster="9.9.9"))
    with pytest.raises(ArchiveError) as refused:
        archive.verify_archive(path, ignore)
    assert refused.value.what == f"{path} has format {number}, written by muster 9.9.9; allowed: 1"
    assert refused.value.fix == "restore it with the version of muster that wrote it"


def test_a_manifest_with_unknown_fields_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with archive.create_archive(path, ignore) as writer:
        writer.add(archive.MANIFEST, [json.dumps({"format": 1, "muster": "1", "other": 1}).encode()])
    with pytest.raises(ArchiveError, match=r"manifest\.json"):
        archive.read_manifest(path)


def test_parts_of_more_than_8_gib_fit_a_header(tmp_path: Path) -> None:
    member = tarfile.TarInfo("big")
    member.size = 2**43
    assert len(member.tobuf(tarfile.GNU_FORMAT)) == 512


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(ArchiveError, match=r"a\.tar cannot be written: File too large"):
            write(tmp_path / "a.tar")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_the_disk_is_never_filled_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "_RESERVE", 2**62)
    monkeypatch.setattr(archive, "_RESERVED_SHARE", 1)
    with pytest.raises(ArchiveError, match=r"would be full: [0-9.]+ GB are free, and no archive was written"):
        write(tmp_path / "a.tar")
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_a_part_leaves_nothing(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"some"
        raise RuntimeError("the controller is gone")

    with pytest.raises(RuntimeError), archive.create_archive(tmp_path / "a.tar", ignore) as writer:
        writer.add(archive.CONTROLLER, chunks())
    assert list(tmp_path.iterdir()) == []


ENDLESS = """
import itertools, pathlib, sys
from infra import archive
with archive.create_archive(pathlib.Path(sys.argv[1]), lambda count: print(count, flush=True)) as writer:
    writer.add("controller.tar.gz", itertools.repeat(bytes(1000)))
"""


def test_a_killed_backup_leaves_no_archive_and_the_next_one_cleans_up(tmp_path: Path) -> None:
    path = tmp_path / f"demo-1{archive.SUFFIX}"
    writer = subprocess.Popen([sys.executable, "-c", ENDLESS, path], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    writer.stdout.readline()
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    assert [file.name for file in tmp_path.iterdir()] == [path.name + archive.PARTIAL]
    archive.remove_partial(tmp_path, "other")
    assert len(list(tmp_path.iterdir())) == 1
    archive.remove_partial(tmp_path, "demo")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_archive_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match=r"none\.tar cannot be read: No such file"):
        archive.read_manifest(tmp_path / "none.tar")
