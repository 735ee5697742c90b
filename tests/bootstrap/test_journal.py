"""The journal of adopted machines, on a real filesystem; units, packages and accounts are tested on real machines."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from bootstrap.changes import JOURNAL, SCRIPT, Changes, Restoration, change_units, journal, parse_restorations

ORIGINAL = "the owner's setting\n"


@dataclass(frozen=True)
class Machine:
    """A folder with the journal's record beside it."""

    root: Path
    record: Path
    backups: Path

    def path(self, name: str) -> Path:
        return self.root / name

    def run(self, *arguments: str) -> str:
        done = self.start(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "MUSTER_RECORD": str(self.record),
            "MUSTER_BACKUPS": str(self.backups),
            "PATH": os.environ["PATH"],
        }
        return subprocess.run(
            ["sh", "-c", SCRIPT, "journal", *arguments], env=environment, capture_output=True, text=True, check=False
        )

    def change(self, name: str, content: str | None) -> None:
        """Write or remove a file as an action does."""
        subject = f"file:{self.path(name)}"
        self.run("before", subject)
        if content is None:
            self.path(name).unlink()
        else:
            self.path(name).parent.mkdir(parents=True, exist_ok=True)
            self.path(name).write_text(content)
        self.run("after", subject)

    def restore(self) -> dict[str, str]:
        """Restore; return the outcome by path below the root."""
        restored = list(parse_restorations(self.run("restore")))
        return {entry.subject.removeprefix(f"{self.root}/"): entry.outcome for entry in restored}

    def snapshot(self) -> dict[str, tuple[int, str]]:
        """Return mode and content, or target, of everything in the folder."""
        return {
            path.relative_to(self.root).as_posix(): (
                path.lstat().st_mode,
                os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else "",
            )
            for path in sorted(self.root.rglob("*"))
        }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/owned.conf").write_text(ORIGINAL)
    (root / "etc/owned.conf").chmod(0o640)
    (root / "etc/link").symlink_to("owned.conf")
    return Machine(root, tmp_path / "record", tmp_path / "backups")


def test_everything_is_as_before(machine: Machine) -> None:
    before = machine.snapshot()
    machine.change("etc/owned.conf", "ours\n")
    machine.change("etc/owned.conf", "ours, second version\n")
    machine.change("etc/link", None)
    machine.change("new/folder/ours.conf", "ours\n")
    machine.change("new/second.conf", "ours\n")
    assert machine.restore() == {
        "etc/owned.conf": "restored",
        "etc/link": "restored",
        "new/folder/ours.conf": "removed",
        "new/second.conf": "removed",
        "new/folder": "removed",
        "new": "removed",
    }
    assert machine.snapshot() == before
    assert machine.restore() == {}


def test_what_somebody_changed_since_is_left_and_the_original_is_stored(machine: Machine) -> None:
    machine.change("etc/owned.conf", "ours\n")
    machine.change("etc/muster/ours.conf", "ours\n")
    machine.path("etc/owned.conf").write_text("edited by the owner\n")
    machine.path("etc/muster/ours.conf").write_text("edited, too\n")
    machine.path("etc/muster/note").write_text("put here by the owner\n")
    output = list(parse_restorations(machine.run("restore")))
    folder = machine.path("etc/muster")
    original = Path(f"{machine.backups}{machine.path('etc/owned.conf')}")
    assert output == [
        Restoration("left", "file", str(machine.path("etc/owned.conf")), f"changed since; the original is {original}"),
        Restoration("left", "file", f"{folder}/ours.conf", "changed since; muster created it"),
        Restoration("left", "folder", str(folder), "not empty: note ours.conf"),
    ]
    assert original.read_text() == ORIGINAL
    assert machine.path("etc/owned.conf").read_text() == "edited by the owner\n"


def test_a_file_on_which_logins_depend_is_restored_even_if_it_was_changed(machine: Machine) -> None:
    subjects = [f"access:{machine.path('etc/owned.conf')}", f"access:{machine.path('etc/ours.conf')}"]
    machine.run("before", *subjects)
    machine.path("etc/owned.conf").write_text("ours\n")
    machine.path("etc/ours.conf").write_text("ours\n")
    machine.run("after", *subjects)
    machine.path("etc/owned.conf").write_text("edited by the owner\n")
    output = list(parse_restorations(machine.run("restore")))
    edited = Path(f"{machine.backups}{machine.path('etc/owned.conf')}")
    assert output == [
        Restoration(
            "restored", "access", str(machine.path("etc/owned.conf")), f"changed since; that version is {edited}"
        ),
        Restoration("removed", "access", str(machine.path("etc/ours.conf"))),
    ]
    assert machine.path("etc/owned.conf").read_text() == ORIGINAL
    assert edited.read_text() == "edited by the owner\n"


def test_what_the_owner_has_restored_is_not_reported(machine: Machine) -> None:
    machine.change("etc/owned.conf", "ours\n")
    machine.path("etc/owned.conf").write_text(ORIGINAL)
    assert machine.restore() == {}


def test_a_change_that_was_interrupted_is_undone(machine: Machine) -> None:
    before = machine.snapshot()
    machine.change("etc/owned.conf", "ours\n")
    machine.run("before", f"file:{machine.path('etc/owned.conf')}", f"file:{machine.path('etc/half.conf')}")
    machine.path("etc/owned.conf").write_text("ours, hal")
    machine.path("etc/half.conf").write_text("hal")
    assert machine.restore() == {"etc/owned.conf": "restored", "etc/half.conf": "removed"}
    assert machine.snapshot() == before


def test_a_restore_that_was_killed_is_continued(machine: Machine) -> None:
    before = machine.snapshot()
    names = [f"etc/{number}.conf" for number in range(12)]
    for name in names:
        machine.change(name, "ours\n")
    environment = {**os.environ, "MUSTER_RECORD": str(machine.record)}
    with subprocess.Popen(
        ["sh", "-c", SCRIPT, "journal", "restore"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout
        first = process.stdout.readline()
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.read()
    assert first.startswith("removed\tfile\t")
    machine.restore()
    assert machine.snapshot() == before


def test_the_state_of_a_daemon_is_restored_as_a_whole(machine: Machine) -> None:
    machine.path("lib/db").mkdir(parents=True)
    machine.path("lib/db/table").write_text("rows\n")
    before = machine.snapshot()
    subjects = [f"tree:{machine.path('lib/db')}", f"tree:{machine.path('lib/queue')}"]
    machine.run("before", *subjects)
    machine.path("lib/queue").mkdir()
    machine.path("lib/queue/job").write_text("1\n")
    machine.path("lib/db/table").write_text("other rows\n")
    machine.path("lib/db/second").write_text("rows\n")
    machine.run("after", *subjects)
    assert machine.restore() == {"lib/db": "restored", "lib/queue": "removed"}
    assert machine.snapshot() == before


def test_effects_without_a_file_are_undone_once(machine: Machine) -> None:
    mark = machine.path("undone")
    for _ in range(2):
        machine.run("before", f"undo:echo undone >>{mark}")
    assert machine.restore() == {f"echo undone >>{mark}": "undone"}
    assert mark.read_text() == "undone\n"


def test_an_entry_that_was_not_complete_does_not_count(machine: Machine) -> None:
    (machine.record / "entries/.new-1").mkdir(parents=True)
    (machine.record / "entries/.new-1/subject").write_text(f"file:{machine.path('etc/owned.conf')}")
    assert machine.restore() == {}
    assert machine.path("etc/owned.conf").read_text() == ORIGINAL


def test_a_folder_in_the_place_of_a_file_is_refused(machine: Machine) -> None:
    refused = machine.start("before", f"file:{machine.path('etc')}")
    assert (refused.returncode, refused.stderr) == (1, f"journal: {machine.path('etc')} is a folder, not a file\n")


def test_the_record_is_written_around_the_script() -> None:
    changes = change_units("slurmd", trees=("/var/lib/slurm",))
    link = "/etc/systemd/system/multi-user.target.wants/slurmd.service"
    subjects = f"unit:slurmd file:{link} tree:/var/lib/slurm"
    assert journal("systemctl restart slurmd", changes) == (
        f"{JOURNAL} before {subjects} </dev/null\n( set -e\nsystemctl restart slurmd\n)\n"
        f"{JOURNAL} after {subjects} </dev/null"
    )
    assert journal("true", Changes()) == "true"
