"""Bundles on the shared filesystem: a new one never takes away the files of a running job."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from bootstrap.facts.model import Facts
from bootstrap.steps.shared_files import BUNDLES_TO_KEEP, plan_bundle
from tests.bootstrap.clusters import desired

NEW = "f" * 16
HOUR_S = 3600


@dataclass(frozen=True)
class Shared:
    """A folder in place of the shared filesystem, with a stub of squeue."""

    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / ".bundles"

    def add_old(self, count: int) -> None:
        """Create bundles that were linked 1, 2, ... hours ago: old-1, old-2, ..."""
        for hours in range(1, count + 1):
            bundle = self.store / f"old-{hours}"
            bundle.mkdir(parents=True)
            (bundle / "file").write_text("in use")
            linked = time.time() - hours * HOUR_S
            os.utime(bundle, (linked, linked))

    def answer(self, *jobs: tuple[str, float | str], code: int = 0) -> None:
        """Let squeue print jobs with their state and their start, in hours before now or as text."""
        lines = "".join(
            f"{state}|{datetime.fromtimestamp(time.time() - start * HOUR_S).isoformat('T', 'seconds')}\n"
            if isinstance(start, float)
            else f"{state}|{start}\n"
            for state, start in jobs
        )
        stub = self.folder / "bin" / "squeue"
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(f"#!/bin/sh\ncat <<'END'\n{lines}END\nexit {code}\n")
        stub.chmod(0o755)

    def ship(self, digest: str = NEW) -> subprocess.CompletedProcess[bytes]:
        done = self.send(digest)
        done.check_returncode()
        assert (self.folder / "muster").readlink() == self.store / digest
        assert (self.folder / "muster" / "trainer" / "run").exists() or digest != NEW
        return done

    def send(self, digest: str = NEW, received: int | None = None) -> subprocess.CompletedProcess[bytes]:
        """Run the action with the whole archive or, as if the connection was cut, with its first bytes."""
        target = desired()
        (action,) = plan_bundle(Facts(), target.inventory.controller, target)
        script = action.script.replace(f"{target.shared}/", f"{self.folder}/").replace(target.bundle.digest, digest)
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        return subprocess.run(
            ["sh", "-e", "-c", script],
            input=action.data[:received],
            env={"PATH": path},
            capture_output=True,
            check=False,
        )

    def bundles(self) -> set[str]:
        return {path.name for path in self.store.iterdir()}


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    return Shared(tmp_path)


def old(*hours: int) -> set[str]:
    return {NEW} | {f"old-{each}" for each in hours}


def test_first_bundle_asks_nothing(shared: Shared) -> None:
    shared.answer(code=1)
    assert shared.ship().stdout == b""
    assert shared.bundles() == {NEW}


@pytest.mark.fault(20)
@pytest.mark.parametrize("received", [0, 1, 512, 1024, 10239])
def test_a_bundle_of_which_a_part_has_arrived_is_not_linked(shared: Shared, received: int) -> None:
    """Tar takes an archive that ends between two files, and one without a byte, for a complete one."""
    shared.answer()
    cut = shared.send(received=received)
    assert cut.returncode != 0
    assert re.search(rb"the connection was cut before all \d+ bytes had arrived", cut.stderr)
    assert not (shared.folder / "muster").is_symlink()
    assert shared.bundles() == set()
    shared.ship()


def test_without_jobs_the_newest_bundles_stay(shared: Shared) -> None:
    shared.add_old(8)
    shared.answer(("PENDING", "N/A"), ("PENDING", 30.0))
    shared.ship()
    assert shared.bundles() == old(*range(1, BUNDLES_TO_KEEP))


@pytest.mark.parametrize("state", ["RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING"])
def test_the_bundle_of_a_running_job_stays_with_all_newer_ones(shared: Shared, state: str) -> None:
    """The job started 7.5 hours ago, when the link led to the bundle of 8 hours ago."""
    shared.add_old(10)
    shared.answer(("RUNNING", 0.5), (state, 7.5), ("PENDING", "N/A"))
    shared.ship()
    assert shared.bundles() == old(*range(1, 9))


def test_a_job_that_started_while_the_link_changed_keeps_both_bundles(shared: Shared) -> None:
    shared.add_old(10)
    shared.answer(("RUNNING", 7.0 - 30 / HOUR_S))
    shared.ship()
    assert {"old-7", "old-8"} <= shared.bundles()
    assert "old-9" not in shared.bundles()


@pytest.mark.parametrize(
    ("jobs", "code"), [((), 1), ((("COMPLETING", "N/A"),), 0), ((("RUNNING", ""),), 0), ((("RUNNING", "soon-ish"),), 0)]
)
def test_everything_stays_if_a_start_is_unknown(
    shared: Shared, jobs: tuple[tuple[str, float | str], ...], code: int
) -> None:
    shared.add_old(8)
    shared.answer(*jobs, code=code)
    assert b"cannot be listed" in shared.ship().stdout
    assert shared.bundles() == old(*range(1, 9))


def test_a_bundle_that_is_linked_again_is_not_replaced(shared: Shared) -> None:
    shared.add_old(2)
    shared.answer()
    file = shared.store / "old-2" / "file"
    before = file.stat().st_ino
    shared.ship("old-2")
    assert (file.stat().st_ino, file.read_text()) == (before, "in use")
    assert shared.store.joinpath("old-2").stat().st_mtime > time.time() - 60


def test_folders_of_calls_that_were_killed_are_removed(shared: Shared) -> None:
    for name in (".new.1", ".new.abcdef", ".deleted.1", ".new.running"):
        (shared.store / name / "trainer").mkdir(parents=True)
        started = time.time() - (0 if name == ".new.running" else HOUR_S)
        os.utime(shared.store / name, (started, started))
    shared.answer()
    shared.ship()
    assert shared.bundles() == {NEW, ".new.running"}
    assert stat.S_IMODE((shared.store / NEW).stat().st_mode) == 0o755, "users read it"


def test_an_archive_that_cannot_be_unpacked_leaves_nothing(shared: Shared) -> None:
    shared.answer()
    tar = shared.folder / "bin" / "tar"
    tar.write_text("#!/bin/sh\nexit 2\n")
    tar.chmod(0o755)
    with pytest.raises(subprocess.CalledProcessError):
        shared.ship()
    assert shared.bundles() == set()


def test_a_call_that_is_killed_as_soon_as_the_link_has_moved_has_marked_its_bundle_as_new(shared: Shared) -> None:
    shared.add_old(2)
    shared.answer()
    move = shared.folder / "bin" / "mv"
    # The script is the stub's parent.
    move.write_text(f'#!/bin/sh\n{shutil.which("mv")} "$@"\ncase $1 in -fT) kill -KILL $PPID ;; esac\n')
    move.chmod(0o755)
    with pytest.raises(subprocess.CalledProcessError) as killed:
        shared.ship("old-2")
    assert killed.value.returncode == -signal.SIGKILL
    assert (shared.folder / "muster").readlink() == shared.store / "old-2"
    assert shared.store.joinpath("old-2").stat().st_mtime > time.time() - 60
