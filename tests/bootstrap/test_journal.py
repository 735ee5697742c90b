"""The journal of adopted machines, on a real filesystem; programs of the system are stand-ins that note their calls."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bootstrap.changes import (
    DATABASE_STATE,
    JOURNAL,
    SCRIPT,
    SLURM_STATE,
    Changes,
    Restoration,
    change_units,
    journal,
    parse_restorations,
)
from tests.bootstrap.journaled_machine import ORIGINAL, Machine, create_machine

LIMIT_S = 60.0


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return create_machine(tmp_path)


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


def test_a_folder_is_removed_if_it_is_new_and_empty(machine: Machine) -> None:
    for name, is_new in (("etc/had", False), ("new", True), ("full", True)):
        folder = machine.path(name)
        if not is_new:
            folder.mkdir()
        machine.run("before", f"folder:{folder}")
        folder.mkdir(exist_ok=True)
    (machine.path("full") / "data").touch()
    assert machine.restore() == {"new": "removed", "full": "left"}
    assert machine.path("etc/had").is_dir()
    assert not machine.path("new").exists()


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
    machine.path("etc/half.conf.muster-new").write_text("ha")
    assert machine.restore() == {"etc/owned.conf": "restored", "etc/half.conf": "removed"}
    assert machine.snapshot() == before


def test_a_restore_that_was_killed_is_continued_with_the_whole_receipt(machine: Machine) -> None:
    before = machine.snapshot()
    names = [f"etc/{number:02}.conf" for number in range(12)]
    for name in names:
        machine.change(name, "ours\n")
    # It waits at a file in the middle, until it is killed.
    machine.run("before", f"undo:touch {machine.stage}/waits; exec sleep {LIMIT_S:.0f}")
    command = ["sh", "-c", SCRIPT, "journal", "restore"]
    with subprocess.Popen(command, env=machine.environment, start_new_session=True) as process:
        deadline = time.monotonic() + LIMIT_S
        while not (machine.stage / "waits").exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    (machine.record / "receipt").write_text("removed\tfile\t/etc/earlier\t\n")
    [entry] = [path for path in machine.record.glob("entries/*") if "undo" in (path / "subject").read_text()]
    (entry / "subject").write_text("undo:true")
    assert machine.restore() == {"/etc/earlier": "removed", "true": "undone"} | dict.fromkeys(names, "removed")
    assert machine.snapshot() == before


def test_a_restore_outlives_its_connection(machine: Machine) -> None:
    before = machine.snapshot()
    for number in range(12):
        machine.change(f"etc/{number}.conf", "ours\n")
    machine.run("before", "undo:kill -HUP 0")
    command = ["sh", "-c", SCRIPT, "journal", "restore"]
    reader, writer = os.pipe()
    os.close(reader)
    with subprocess.Popen(command, env=machine.environment, stdout=writer, start_new_session=True) as process:
        os.close(writer)
        assert process.wait(LIMIT_S) != 0
    assert machine.snapshot() == before
    # Nobody has read the receipt, so it is still there.
    assert len(machine.restore()) == len(["undo", *range(12)])


def tree(machine: Machine, name: str) -> str:
    return f"tree:mariadb,mysql:{machine.path(name)}"


def test_the_state_of_a_daemon_is_restored_as_a_whole(machine: Machine) -> None:
    machine.path("lib/db").mkdir(parents=True)
    machine.path("lib/db/table").write_text("rows\n")
    machine.path("lib/same").mkdir()
    machine.path("lib/same/table").write_text("rows\n")
    before = machine.snapshot()
    subjects = [tree(machine, name) for name in ("lib/db", "lib/queue", "lib/same", "lib/empty")]
    machine.run("before", *subjects)
    machine.path("lib/queue").mkdir()
    machine.path("lib/queue/job").write_text("1\n")
    machine.path("lib/empty/folder").mkdir(parents=True)
    machine.path("lib/db/table").write_text("other rows\n")
    machine.path("lib/db/second").write_text("rows\n")
    machine.run("after", *subjects)
    assert machine.restore() == {"lib/db": "restored", "lib/queue": "removed", "lib/empty": "removed"}
    assert machine.snapshot() == before
    assert not machine.backup("lib/same").exists()
    assert not machine.backup("lib/empty").exists()


def test_data_that_the_owner_has_put_into_a_daemons_folder_is_moved_not_deleted(machine: Machine) -> None:
    machine.path("lib/db").mkdir(parents=True)
    machine.path("lib/db/table").write_text("rows\n")
    subjects = [tree(machine, "lib/db"), tree(machine, "lib/new")]
    machine.run("before", *subjects)
    machine.run("after", *subjects)
    machine.path("lib/db/table").write_text("rows, and those of the owner\n")
    machine.path("lib/new").mkdir()
    machine.path("lib/new/table").write_text("of the owner\n")
    # From an earlier release.
    machine.backup("lib/new").mkdir(parents=True)
    assert list(parse_restorations(machine.run("restore"))) == [
        Restoration(
            "removed", "tree", str(machine.path("lib/new")), f"what was there is {machine.backup('lib/new')}.2"
        ),
        Restoration("restored", "tree", str(machine.path("lib/db")), f"what was there is {machine.backup('lib/db')}"),
    ]
    assert machine.path("lib/db/table").read_text() == "rows\n"
    assert (machine.backup("lib/db") / "table").read_text() == "rows, and those of the owner\n"
    assert Path(f"{machine.backup('lib/new')}.2/table").read_text() == "of the owner\n"


def test_the_data_of_a_daemon_that_runs_is_refused(machine: Machine) -> None:
    machine.activate("mysql")
    refused = machine.start("before", tree(machine, "lib/db"))
    assert (refused.returncode, refused.stderr) == (
        1,
        f"journal: mysql is active, and muster would change its data in {machine.path('lib/db')}: "
        "stop it and move that folder away, or leave the machine out\n",
    )
    assert list(machine.record.glob("entries/*/subject")) == [
        path for path in machine.record.glob("entries/*/subject") if path.read_text().startswith("folder:")
    ]


def test_the_data_of_a_daemon_that_does_not_stop_is_left(machine: Machine) -> None:
    machine.run("before", tree(machine, "lib/db"))
    machine.path("lib/db").mkdir(parents=True)
    machine.path("lib/db/table").write_text("rows\n")
    machine.activate("mariadb")
    assert machine.restore() == {"lib/db": "left", "lib": "left"}
    assert machine.path("lib/db/table").read_text() == "rows\n"


def test_a_second_change_by_muster_does_not_forget_that_of_the_owner(machine: Machine) -> None:
    machine.change("etc/owned.conf", "ours\n")
    machine.change("etc/ours.conf", "ours\n")
    machine.path("etc/owned.conf").write_text("edited by the owner\n")
    machine.path("etc/ours.conf").write_text("edited, too\n")
    machine.change("etc/owned.conf", "ours, second version\n")
    machine.change("etc/ours.conf", "ours, second version\n")
    assert machine.backup("etc/owned.conf").read_text() == "edited by the owner\n"
    original = f"{machine.backup('etc/owned.conf')}.2"
    assert list(parse_restorations(machine.run("restore"))) == [
        Restoration(
            "left",
            "file",
            str(machine.path("etc/owned.conf")),
            f"changed since; the original is {original}; versions in between are {machine.backup('etc/owned.conf')}",
        ),
        Restoration(
            "left",
            "file",
            str(machine.path("etc/ours.conf")),
            f"changed since; muster created it; versions in between are {machine.backup('etc/ours.conf')}",
        ),
    ]
    assert Path(original).read_text() == ORIGINAL


def test_rules_for_logins_are_restored_and_the_owners_version_is_named(machine: Machine) -> None:
    machine.change("etc/owned.conf", "ours\n", "access")
    machine.path("etc/owned.conf").write_text("edited by the owner\n")
    machine.change("etc/owned.conf", "ours, second version\n", "access")
    [restored] = parse_restorations(machine.run("restore"))
    assert restored.remark == f"changed since; that version is {machine.backup('etc/owned.conf')}"
    assert machine.path("etc/owned.conf").read_text() == ORIGINAL
    assert machine.backup("etc/owned.conf").read_text() == "edited by the owner\n"


def test_what_was_being_changed_is_stored_before_it_is_replaced(machine: Machine) -> None:
    machine.run("before", f"file:{machine.path('etc/owned.conf')}")
    machine.path("etc/owned.conf").write_text("by whom?\n")
    [restored] = parse_restorations(machine.run("restore"))
    assert restored.remark == f"was being changed; that version is {machine.backup('etc/owned.conf')}"
    assert machine.backup("etc/owned.conf").read_text() == "by whom?\n"


def test_who_can_log_in_is_restored_first(machine: Machine) -> None:
    machine.activate("ssh")
    machine.run("before", "unit:ssh", "unit:slurmd")
    machine.change("etc/a.conf", "ours\n")
    machine.change("etc/owned.conf", "ours\n", "access")
    machine.activate("slurmd")
    assert list(machine.restore().items()) == [
        ("etc/owned.conf", "restored"),
        ("ssh", "restored"),
        ("slurmd", "stopped"),
        ("etc/a.conf", "removed"),
    ]
    changing = [call for call in machine.list_calls("systemctl") if "is-active" not in call]
    assert changing == ["reload-or-restart ssh", "stop slurmd", "daemon-reload"]


@pytest.mark.parametrize("accepts", [True, False])
def test_ssh_that_does_not_accept_its_settings_keeps_its_process_id(machine: Machine, accepts: bool) -> None:
    """The stand-in for sshd writes 4711 after a reload; until then, restore waits by sleeping."""
    machine.activate("ssh")
    machine.run("before", "unit:ssh")
    process_id = machine.stage / "sshd.pid"
    process_id.write_text(f"{os.getpid()}\n")
    (machine.stage / "bin/sleep").write_text('#!/bin/sh\necho "sleep $*" >>$STAGE/calls\n')
    (machine.stage / "bin/sleep").chmod(0o755)
    if not accepts:
        (machine.stage / "rejects").touch()
    [restored] = parse_restorations(machine.run("restore"))
    assert restored.outcome == ("restored" if accepts else "left")
    assert process_id.read_text() == ("4711\n" if accepts else f"{os.getpid()}\n")
    assert machine.list_calls("sleep") == []


def test_users_can_log_in_afterwards(machine: Machine) -> None:
    (machine.stage / "nologin").touch()
    machine.restore()
    assert machine.list_calls("systemctl") == ["start systemd-user-sessions"]


def test_systemd_is_not_asked_if_nothing_of_it_was_changed(machine: Machine) -> None:
    machine.change("etc/owned.conf", "ours\n")
    assert machine.restore() == {"etc/owned.conf": "restored"}
    assert machine.list_calls("systemctl") == []


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
    changes = change_units("slurmd", trees=(SLURM_STATE, DATABASE_STATE))
    link = "/etc/systemd/system/multi-user.target.wants/slurmd.service"
    trees = "tree:slurmctld,slurmdbd,slurmd:/var/lib/slurm tree:mariadb,mysql:/var/lib/mysql"
    subjects = f"unit:slurmd file:{link} {trees}"
    assert journal("systemctl restart slurmd", changes) == (
        f"{JOURNAL} before {subjects} </dev/null\n( set -e\nsystemctl restart slurmd\n)\n"
        f"{JOURNAL} after {subjects} </dev/null"
    )
    assert journal("true", Changes()) == "true"
