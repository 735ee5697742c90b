"""Images for jobs on the shared filesystem: complete or absent, readable by all, and kept while a job may use them."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from bootstrap.job_images import IMAGES_TO_KEEP, forget_attempt, publish_image, read_digest, receive_image

HOUR_S = 3600
SIZE = 2000
CONFIG = '{"root": {"path": "rootfs"}}'


def pack(**files: int) -> bytes:
    """Return an archive of files with these modes; names that end with `_` are folders."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, mode in files.items():
            entry = tarfile.TarInfo(name.strip("_"))
            entry.mode, entry.uid, entry.gid = mode, 4321, 4321
            entry.type = tarfile.DIRTYPE if name.endswith("_") else tarfile.REGTYPE
            entry.size = 0 if name.endswith("_") else SIZE
            tar.addfile(entry, io.BytesIO(bytes(SIZE)))
    return packed.getvalue()


@dataclass(frozen=True)
class Shared:
    """A folder in place of the shared filesystem, with a stub of squeue."""

    folder: Path

    def run(self, script: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        return subprocess.run(["sh", "-c", script], input=data, env={"PATH": path}, capture_output=True, check=False)

    def receive(self, attempt: str, data: bytes, name: str = "a") -> subprocess.CompletedProcess[bytes]:
        return self.run(receive_image(str(self.folder), name, attempt), data)

    def publish(self, attempt: str, digest: str, name: str = "a") -> None:
        done = self.run(publish_image(str(self.folder), name, attempt, digest, CONFIG))
        assert done.returncode == 0, done.stderr
        assert self.read_digest(name) == digest

    def read_digest(self, name: str) -> str:
        return self.run(read_digest(str(self.folder), name)).stdout.decode().strip()

    def replace_program(self, name: str, script: str) -> None:
        stub = self.folder / "bin" / name
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(f"#!/bin/sh\n{script}\n")
        stub.chmod(0o755)

    def answer(self, start_hours_ago: float | None) -> None:
        """Let squeue print one running job, or none."""
        line = ""
        if start_hours_ago is not None:
            start = datetime.fromtimestamp(time.time() - start_hours_ago * HOUR_S)
            line = f"RUNNING|{start.isoformat('T', 'seconds')}"
        self.replace_program("squeue", f"echo '{line}'")

    def versions(self) -> set[str]:
        return {path.name for path in (self.folder / "images" / ".a").iterdir()}

    def age(self, digest: str, hours: int) -> None:
        """Pretend that a version was published hours ago."""
        published = time.time() - hours * HOUR_S
        os.utime(self.folder / "images" / ".a" / digest, (published, published))


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    shared = Shared(tmp_path)
    shared.answer(None)
    return shared


def test_a_published_image_is_a_bundle_that_everyone_can_read(shared: Shared) -> None:
    devices = {"dev/zero": 0o666, "./dev/null": 0o666, "dev/pts/0": 0o620}
    files = pack(opt_=0o700, script=0o744, tool=0o4750, key=0o600, dev_=0o755, **devices, **{"opt/dev/settings": 0o644})
    assert shared.receive("one", files).returncode == 0
    assert not (shared.folder / "images" / "a").exists()
    shared.publish("one", "d1")
    image = shared.folder / "images" / "a"
    assert (image / "config.json").read_text() == f"{CONFIG}\n"
    modes = {path.name: path.stat().st_mode & 0o777 for path in (image / "rootfs").iterdir()}
    assert modes == {"opt": 0o755, "script": 0o755, "tool": 0o755, "key": 0o644, "dev": 0o755}
    assert [*(image / "rootfs" / "dev").iterdir()] == []
    assert (image / "rootfs" / "opt" / "dev" / "settings").stat().st_size == SIZE
    assert {path.stat().st_uid for path in (image / "rootfs").iterdir()} == {os.getuid()}
    assert image.readlink() == Path(".a/d1")


def test_an_archive_that_ends_inside_of_a_file_leaves_nothing(shared: Shared) -> None:
    done = shared.receive("one", pack(a=0o644, b=0o644)[:SIZE])
    assert done.returncode != 0
    assert b"Unexpected EOF" in done.stderr
    assert shared.versions() == set()


def test_a_forgotten_attempt_leaves_what_was_published(shared: Shared) -> None:
    shared.receive("one", pack(a=0o644))
    shared.publish("one", "d1")
    shared.receive("two", pack(b=0o644))
    assert shared.run(forget_attempt(str(shared.folder), "a", "two")).returncode == 0
    assert shared.versions() == {"d1"}
    assert (shared.folder / "images" / "a" / "rootfs" / "a").exists()


def test_of_two_attempts_with_one_image_the_first_stays(shared: Shared) -> None:
    for attempt in ("one", "two"):
        assert shared.receive(attempt, pack(a=0o644)).returncode == 0
    shared.publish("two", "d1")
    shared.publish("one", "d1")
    assert shared.versions() == {"d1"}


def test_what_killed_attempts_have_left_is_deleted_after_a_day(shared: Shared) -> None:
    shared.receive("one", pack(a=0o644))
    shared.publish("one", "d1")
    for name in (".new.old", ".deleted.old", ".new.young", ".deleted.young"):
        (shared.folder / "images" / ".a" / name / "rootfs").mkdir(parents=True)
        shared.age(name, 25 if name.endswith("old") else 23)
    assert shared.receive("two", pack(b=0o644)).returncode == 0
    assert shared.versions() == {"d1", ".new.two", ".new.young", ".deleted.young"}


def test_an_image_may_have_any_name_next_to_another(shared: Shared) -> None:
    for name, digest in (("a.new", "d1"), ("a", "d2")):
        assert shared.receive("one", pack(a=0o644), name).returncode == 0
        shared.publish("one", digest, name)
    assert shared.read_digest("a.new") == "d1"
    assert {path.name for path in (shared.folder / "images").iterdir()} == {"a", ".a", "a.new", ".a.new"}


def test_two_attempts_may_publish_at_the_same_time(shared: Shared) -> None:
    """The second publishes just before the first moves its link."""
    for attempt in ("one", "two"):
        shared.receive(attempt, pack(a=0o644))
    second = shared.folder / "second.sh"
    second.write_text(publish_image(str(shared.folder), "a", "two", "d2", CONFIG))
    started = shared.folder / "started"
    once = f'if [ "$1" = -fT ] && mkdir {started} 2>/dev/null; then sh {second} || exit 1; fi'
    shared.replace_program("mv", f'{once}\nexec /bin/mv "$@"')
    shared.publish("one", "d1")
    assert started.exists()
    assert shared.versions() == {"d1", "d2"}


@pytest.mark.parametrize(
    ("job_started_hours_ago", "versions"),
    [(None, {"d3", "d2"}), (0.5, {"d3", "d2"}), (2.5, {"d3", "d2", "d1"})],
)
def test_a_version_stays_while_a_job_may_use_it(
    shared: Shared, job_started_hours_ago: float | None, versions: set[str]
) -> None:
    """Version d1 was replaced by d2 two hours ago."""
    shared.answer(job_started_hours_ago)
    for digest, hours in (("d1", 3), ("d2", 2)):
        shared.receive(digest, pack(a=0o644))
        shared.publish(digest, digest)
        shared.age(digest, hours)
    shared.age("d1", 3)
    shared.receive("d3", pack(a=0o644))
    shared.publish("d3", "d3")
    assert shared.versions() == versions
    assert IMAGES_TO_KEEP == 2
