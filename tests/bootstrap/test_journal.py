"""The journal of adopted machines, on a real filesystem; programs of the system are stand-ins that note their calls."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
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

ORIGINAL = "the owner's setting\n"
LIMIT_S = 60.0
# Units are active if a file of their name exists; accounts are lines of the machine's passwd; packages are lines of
# `name<TAB>version<TAB>state`. apt-get announces what is in `announces`, and removes packages unless there is `locked`.
PROGRAMS = {
    "systemctl": """case $* in
  "-q is-active "*) test -e "$STAGE/active/$3" ;;
  "is-active "*) if [ -e "$STAGE/active/$2" ]; then echo active; else echo inactive; exit 3; fi ;;
  "stop "*) rm "$STAGE/active/$2" ;;
  "start systemd-user-sessions") rm -f "$MUSTER_NOLOGIN" ;;
esac""",
    "getent": 'grep "^$2:" "$STAGE/../root/etc/passwd"',
    "userdel": 'sed -i "/^$1:/d" "$STAGE/../root/etc/passwd"',
    "pkill": "exit 1",
    "dpkg": 'case $1 in --audit) cat "$STAGE/broken" 2>/dev/null || true ;; esac',
    "dpkg-query": """case $* in
  *Status-Status*) awk -F '\\t' -v OFS='\\t' '{ print $3, $1, $2 }' "$STAGE/packages" ;;
  *) shift $(($# - 1)); awk -F '\\t' -v name="$1" '$1 == name { printf "%s", $2 }' "$STAGE/packages" ;;
esac""",
    "apt-get": """case $* in
  "-s install "*) cat "$STAGE/announces" ;;
  "-s purge "*)
    shift 2
    for name in "$@"; do
      echo "Purg $name [1]"
      sed -n "s/^$name needed by /Remv /p" "$STAGE/needs" 2>/dev/null || true
    done ;;
  *purge*)
    if [ -e "$STAGE/locked" ]; then echo "E: Could not get lock /var/lib/dpkg/lock-frontend." >&2; exit 100; fi
    while [ "$1" != purge ]; do shift; done
    shift
    for name in "$@"; do sed -i "/^$name\t/d" "$STAGE/packages"; done ;;
esac""",
}


@dataclass(frozen=True)
class Machine:
    """A folder with the journal's record beside it."""

    root: Path
    record: Path
    backups: Path
    stage: Path
    """Folder with the state of the stand-ins."""

    def path(self, name: str) -> Path:
        return self.root / name

    @property
    def environment(self) -> dict[str, str]:
        return {
            "MUSTER_RECORD": str(self.record),
            "MUSTER_BACKUPS": str(self.backups),
            "MUSTER_NOLOGIN": str(self.stage / "nologin"),
            "STAGE": str(self.stage),
            "PATH": f"{self.stage}/bin:{os.environ['PATH']}",
        }

    def run(self, *arguments: str) -> str:
        done = self.start(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", SCRIPT, "journal", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def change(self, name: str, content: str | None, kind: str = "file") -> None:
        """Write or remove a file as an action does."""
        subject = f"{kind}:{self.path(name)}"
        self.run("before", subject)
        if content is None:
            self.path(name).unlink()
        else:
            self.path(name).parent.mkdir(parents=True, exist_ok=True)
            self.path(name).write_text(content)
        self.run("after", subject)

    def install(self, announced: str, *packages: str) -> None:
        """Install packages as an action does; `announced` is what apt-get says before."""
        (self.stage / "announces").write_text(announced)
        self.run("before", "packages:")
        self.run("installs", "anything")
        self.add_packages(*packages)
        self.run("after", "packages:")

    def add_packages(self, *packages: str) -> None:
        with (self.stage / "packages").open("a") as listed:
            listed.writelines(f"{package}\t1\tinstalled\n" for package in packages)

    def list_packages(self) -> list[str]:
        return [line.split("\t")[0] for line in (self.stage / "packages").read_text().splitlines()]

    def activate(self, unit: str) -> None:
        (self.stage / "active" / unit).touch()

    def list_calls(self, program: str) -> list[str]:
        """Return the arguments of each call of a program."""
        calls = (self.stage / "calls").read_text().splitlines() if (self.stage / "calls").exists() else []
        return [call.removeprefix(f"{program} ") for call in calls if call.startswith(f"{program} ")]

    def restore(self) -> dict[str, str]:
        """Restore; return the outcome by path below the root."""
        restored = list(parse_restorations(self.run("restore")))
        return {entry.subject.removeprefix(f"{self.root}/"): entry.outcome for entry in restored}

    def backup(self, name: str) -> Path:
        """Return where a file of the machine is among the backups."""
        return Path(f"{self.backups}{self.path(name)}")

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
    stage = tmp_path / "stage"
    (stage / "bin").mkdir(parents=True)
    (stage / "active").mkdir()
    (stage / "packages").write_text("base\t1\tinstalled\n")
    for name, script in PROGRAMS.items():
        program = stage / "bin" / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >>"$STAGE/calls"\n{script}\n')
        program.chmod(0o755)
    return Machine(root, tmp_path / "record", tmp_path / "backups", stage)


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


REGISTRIES = ("etc/passwd", "etc/shadow")


def add_account(machine: Machine, name: str) -> None:
    """Add an account as an action does."""
    subjects = [f"account:{name}", *(f"registry:{machine.path(path)}" for path in REGISTRIES)]
    machine.run("before", *subjects)
    for path in REGISTRIES:
        with machine.path(path).open("a") as registry:
            registry.write(f"{name}:\n")
    machine.run("after", *subjects)


@pytest.fixture
def accounts(machine: Machine) -> Machine:
    """Return a machine with files of accounts."""
    for path in REGISTRIES:
        machine.path(path).write_text("root:\n")
    return machine


def test_files_of_accounts_are_restored(accounts: Machine) -> None:
    before = accounts.snapshot()
    add_account(accounts, "alice")
    assert accounts.restore() == dict.fromkeys(REGISTRIES, "restored")
    assert accounts.snapshot() == before


def test_if_one_file_of_accounts_was_changed_none_is_replaced(accounts: Machine) -> None:
    add_account(accounts, "alice")
    with accounts.path("etc/shadow").open("a") as shadow:
        shadow.write("bob:\n")
    add_account(accounts, "carol")
    assert accounts.restore() == {"alice": "removed", "carol": "removed", "etc/shadow": "left"}
    assert accounts.path("etc/passwd").read_text() == "root:\n"
    assert "bob:\n" in accounts.path("etc/shadow").read_text()


def test_accounts_stay_with_the_packages_that_added_them(accounts: Machine) -> None:
    accounts.run("before", *(f"registry:{accounts.path(path)}" for path in REGISTRIES))
    accounts.install("Inst ours (1 Debian)\n", "ours")
    with accounts.path("etc/passwd").open("a") as passwd:
        passwd.write("daemon-of-ours:\n")
    accounts.run("after", *(f"registry:{accounts.path(path)}" for path in REGISTRIES))
    (accounts.stage / "needs").write_text("ours needed by theirs\n")
    assert list(parse_restorations(accounts.run("restore"))) == [
        Restoration("left", "packages", "ours", "needed by theirs"),
        Restoration(
            "left",
            "file",
            str(accounts.path("etc/passwd")),
            f"packages that stay need their accounts; the original is {accounts.backup('etc/passwd')}",
        ),
    ]
    assert "daemon-of-ours" in accounts.path("etc/passwd").read_text()


def test_only_packages_that_apt_announced_are_removed(machine: Machine) -> None:
    announced = "Inst ours (1 Debian)\nInst also-ours:amd64 (1 Debian)\nConf ours (1 Debian)\n"
    machine.install(announced, "ours", "also-ours:amd64", "installed-by-somebody-else-meanwhile")
    assert machine.restore() == {"also-ours ours": "removed"}
    assert "installed-by-somebody-else-meanwhile" in machine.list_packages()
    [purge] = [call for call in machine.list_calls("apt-get") if " purge " in call and "-s" not in call.split()]
    assert purge == "-q -y -o DPkg::Lock::Timeout=300 purge also-ours ours"


def test_a_package_that_is_half_installed_is_configured_and_removed(machine: Machine) -> None:
    machine.install("Inst ours (1 Debian)\n")
    (machine.stage / "announces").write_text("Inst ours (1 Debian)\n")
    machine.run("before", "packages:")
    machine.run("installs", "ours")
    with (machine.stage / "packages").open("a") as listed:
        listed.write("ours\t1\thalf-configured\ngone\t1\tconfig-files\n")
    (machine.stage / "broken").write_text("ours is not configured\n")
    assert machine.restore() == {"ours": "removed"}
    assert machine.list_calls("dpkg") == ["--audit", "--configure -a"]


def test_packages_that_others_need_stay_and_the_others_go(machine: Machine) -> None:
    machine.install("Inst ours (1 Debian)\nInst library (1 Debian)\n", "ours", "library")
    (machine.stage / "needs").write_text("library needed by theirs\n")
    assert list(parse_restorations(machine.run("restore"))) == [
        Restoration("removed", "packages", "ours"),
        Restoration("left", "packages", "library", "needed by theirs"),
    ]


def test_a_lock_on_packages_ends_the_restore_and_the_next_one_removes_them(machine: Machine) -> None:
    machine.install("Inst ours (1 Debian)\n", "ours")
    (machine.stage / "locked").touch()
    stopped = machine.start("restore")
    assert (stopped.returncode, stopped.stderr) == (
        1,
        "journal: packages cannot be removed now: E: Could not get lock /var/lib/dpkg/lock-frontend.\n",
    )
    (machine.stage / "locked").unlink()
    assert machine.restore() == {"ours": "removed"}


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
