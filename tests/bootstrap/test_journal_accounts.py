"""How the journal restores accounts and packages, which refer to each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from bootstrap.changes import Restoration, parse_restorations
from tests.bootstrap.journaled_machine import Machine, create_machine

REGISTRIES = ("etc/passwd", "etc/shadow")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return create_machine(tmp_path)


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
