"""The choice of a kernel that has a Lustre client, and the script that installs one, with stubs for apt and GRUB."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bootstrap.lustre_kernels import choose_kernel, list_client_kernels, read_package_names

ROOT = Path(__file__).parents[2]
SCRIPTS = ("lustre-client.sh", "lustre-kernel.sh")
INDEX = """\
Package: lustre-client-modules-aws
Version: 2.15.6-1fsx26
Depends: lustre-client-modules-6.8.0-1041-aws

Package: lustre-client-modules-6.8.0-1041-aws
Version: 2.15.6-1fsx26
Depends: linux-image-6.8.0-1041-aws

Package: lustre-client-modules-5.15.0-1084-aws
Version: 2.12.8-1fsx31

Package: lustre-client-modules-6.8.0-1009-aws
Version: 2.15.4-1fsx5
"""
IMAGES = [f"linux-image-{kernel}" for kernel in ("6.8.0-1045-aws", "6.8.0-1041-aws", "5.15.0-1084-aws")]
NAMES = [*read_package_names(INDEX), *IMAGES]
# Two keys that nobody uses, and their fingerprints.
FINGERPRINT = "07C576982025BAD74BC786855C0C8A8198AEF4AB"
KEY = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEZZIAgBYJKwYBBAHaRw8BAQdAaH1xDq3GdsaGQloqvljaMmb2ow6ZhR6CCRvV
xARBM+C0BnBpbm5lZIiQBBMWCAA4FiEEB8V2mCAlutdLx4aFXAyKgZiu9KsFAmWS
AIACGwMFCwkIBwIGFQoJCAsCBBYCAwECHgECF4AACgkQXAyKgZiu9KvcVgD9EHtv
IOPkQZoAd/Fy6WFMu6aAPHBb6I8gB7TFmgF9zscBAJj0XLHIqO+7y3BVm5Xb3SYE
pTsWi3Vua/tqwx6YR9cG
=3yhs
-----END PGP PUBLIC KEY BLOCK-----
"""
STRANGER_FINGERPRINT = "AF2516D0605E10514B618552724470D7B9DB485D"
STRANGER = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEZZIAgBYJKwYBBAHaRw8BAQdAFUkF1+86XgPmen4UnVrBY/Ly4kabaHIqFKzI
2hV+gqW0CHN0cmFuZ2VyiJAEExYIADgWIQSvJRbQYF4QUUthhVJyRHDXudtIXQUC
ZZIAgAIbAwULCQgHAgYVCgkICwIEFgIDAQIeAQIXgAAKCRByRHDXudtIXaZnAP9R
58a7xqjuMuW3aoeBV54hMNxPIUJaKRAt5SsuKFhGDwD/eG5Hbp8mf2e43Ig++mA/
frXr7dMnxxmoVVWpv6EUTgQ=
=O4Xg
-----END PGP PUBLIC KEY BLOCK-----
"""
# A third key, to which the subkey of this fingerprint is bound.
SUBKEY_FINGERPRINT = "8FABC4963457EAA07EEAB8478A84FBE919CAEC4C"
IMPOSTOR = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEZZIAgBYJKwYBBAHaRw8BAQdAoXtfGb1XoiiLI8RGT/Bbs8K6V5d3SgCIuGNT
kN/D9fa0CGltcG9zdG9yiJAEExYIADgWIQQ3W94fbvS5YNwgxcs4iuWnKvY3/AUC
ZZIAgAIbAwULCQgHAgYVCgkICwIEFgIDAQIeAQIXgAAKCRA4iuWnKvY3/IrEAQCK
P+KcbwPQXtDr2Cv/slPAwFvLWtuehEFHhpamYixs0AD/Q/wB0lx8Xp1Fs7wPggF+
GBbV0ld9sVVITI74A7mpQw+4MwRlkgCAFgkrBgEEAdpHDwEBB0A6limPbPmUGQQ6
D7evJN3U0oWZULGS/mtPyTJg23N+8YjvBBgWCAAgFiEEN1veH270uWDcIMXLOIrl
pyr2N/wFAmWSAIACGwIAgQkQOIrlpyr2N/x2IAQZFggAHRYhBI+rxJY0V+qgfuq4
R4qE++kZyuxMBQJlkgCAAAoJEIqE++kZyuxM8cEBAM27OjDsbOeDrSUtqSrAUghu
cl0ZpOuOBNbAMBzvgctkAQDGToBgoZtzGs/bTwhTmq8+ezsWfVK64zM5RbeTXAKb
ALwjAP4t0nXKoGPuf3cCpp1He/z0p0NqWzON1mff2v1MdNzCwQEAutpUJzs5z3V2
/LRxfVKngtRLULVAH+NI7MdqLecFvAw=
=wEPC
-----END PGP PUBLIC KEY BLOCK-----
"""
# The key with the same fingerprint as a primary key.
GENUINE = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEZZIAgBYJKwYBBAHaRw8BAQdAOpYpj2z5lBkEOg+3ryTd1NKFmVCxkv5rT8ky
YNtzfvG0BnBpbm5lZIiQBBMWCAA4FiEEj6vEljRX6qB+6rhHioT76RnK7EwFAmWS
AIACGwMFCwkIBwIGFQoJCAsCBBYCAwECHgECF4AACgkQioT76RnK7Ex3lQD+NS1U
Ls11FGX8y5QiFjRUYSDEGN1VLaEAUfUqirDjnIoBANRFOK2ANUTelbq5qKQy951y
ca9tJ+cGG94/e2xVgoEC
=VZr5
-----END PGP PUBLIC KEY BLOCK-----
"""


def test_the_index_names_a_kernel_per_client_oldest_first() -> None:
    assert list_client_kernels(read_package_names(INDEX)) == ["5.15.0-1084-aws", "6.8.0-1009-aws", "6.8.0-1041-aws"]
    assert list_client_kernels([]) == []


@pytest.mark.parametrize(
    ("running", "packages", "chosen"),
    [
        # A kernel with a client stays, also if it is not the newest.
        ("6.8.0-1009-aws", NAMES, "6.8.0-1009-aws"),
        ("6.8.0-1045-aws", NAMES, "6.8.0-1041-aws"),
        # The series of the running kernel comes first.
        ("5.15.0-1090-aws", NAMES, "5.15.0-1084-aws"),
        # A series without clients: the newest kernel that has one.
        ("6.17.0-1002-aws", NAMES, "6.8.0-1041-aws"),
        # Clients whose kernel cannot be installed do not help, nor do those of another flavour.
        ("6.8.0-1045-aws", read_package_names(INDEX), ""),
        ("6.8.0-45-generic", NAMES, ""),
        ("6.8.0-1045-aws", [], ""),
    ],
)
def test_the_kernel_is_the_running_one_or_the_newest_that_has_a_client(
    running: str, packages: list[str], chosen: str
) -> None:
    assert choose_kernel(running, packages) == chosen


class Machine:
    """A folder in place of a machine's disk; the tools that would change this machine only record their arguments."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder, self.calls = folder, folder / "calls"
        self.fetch_lists = "apt-get update"
        self.chosen = ""
        self.fingerprint = FINGERPRINT
        tools = folder / "tools"
        tools.mkdir()
        for name in ("apt-get", "apt-mark", "update-grub", "modprobe"):
            self._stub(tools / name, f'echo "{name} $*" >>{self.calls}')
        self._stub(tools / "apt-cache", f"cat {folder}/names")
        (folder / "names").write_text("\n".join(names))
        (folder / "key").write_text(KEY)
        for created in ("usr/share/keyrings", "etc/apt/sources.list.d", "proc/sys/kernel/random"):
            (folder / created).mkdir(parents=True)
        self.tools = tools
        self.boot("first")

    def boot(self, boot_id: str) -> None:
        (self.folder / "proc/sys/kernel/random/boot_id").write_text(f"{boot_id}\n")
        shutil.rmtree(self.folder / "run", ignore_errors=True)

    def run(self, running: str) -> subprocess.CompletedProcess[str]:
        self.calls.write_text("")
        script, switch = ((ROOT / "bootstrap/scripts" / name).read_text() for name in SCRIPTS)
        for path in ("/usr/share/keyrings", "/var/lib/muster", "/etc/default", "/etc/apt", "/proc/sys"):
            script, switch = (text.replace(path, f"{self.folder}{path}") for text in (script, switch))
        values = {
            "RUNNING": running,
            "URL": "https://repository",
            "KEY_URL": (self.folder / "key").as_uri(),
            "FINGERPRINT": self.fingerprint,
            "PYTHON": sys.executable,
            "FETCH_LISTS": self.fetch_lists,
            "SWITCH": f"RESTART={self.folder}/run/restart\n{switch}",
            "CHOSEN": self.chosen,
        }
        environment = {**os.environ, **values, "PATH": f"{self.tools}:{os.environ['PATH']}"}
        return subprocess.run(
            ["sh", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )

    def read(self, path: str) -> str:
        return (self.folder / path).read_text()

    def _stub(self, path: Path, line: str) -> None:
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)


def test_a_kernel_that_has_a_client_stays_and_gets_its_repository(tmp_path: Path) -> None:
    """The client is installed with all other packages."""
    machine = Machine(tmp_path, NAMES)
    done = machine.run("6.8.0-1041-aws")
    assert done.returncode == 0, done.stderr
    assert "apt-get update\n" in machine.read("calls")
    assert "install" not in machine.read("calls")
    assert "https://repository" in machine.read("etc/apt/sources.list.d/muster-lustre.list")
    assert not (tmp_path / "run/restart").exists()


@pytest.mark.parametrize("file", [KEY, STRANGER + KEY])
def test_only_the_pinned_key_gets_into_the_keyring(tmp_path: Path, file: str) -> None:
    machine = Machine(tmp_path, NAMES)
    (tmp_path / "key").write_text(file)
    assert machine.run("6.8.0-1041-aws").returncode == 0
    keyring = tmp_path / "usr/share/keyrings/muster-lustre-client.gpg"
    shown = subprocess.run(["gpg", "--show-keys", "--with-colons", keyring], capture_output=True, text=True, check=True)
    assert [line.split(":")[9] for line in shown.stdout.splitlines() if line.startswith("fpr")] == [FINGERPRINT]
    assert STRANGER_FINGERPRINT not in shown.stdout


@pytest.mark.parametrize(
    ("file", "error"),
    [(STRANGER, f"does not contain the pinned key {FINGERPRINT}: not used"), ("<html>", "is not a file of keys")],
)
def test_a_replaced_key_is_rejected_before_apt_uses_it(tmp_path: Path, file: str, error: str) -> None:
    machine = Machine(tmp_path, NAMES)
    (tmp_path / "key").write_text(file)
    done = machine.run("6.8.0-1041-aws")
    assert done.returncode == 1
    assert error in done.stderr
    assert machine.read("calls") == ""
    assert not (tmp_path / "etc/apt/sources.list.d/muster-lustre.list").exists()


@pytest.mark.parametrize(
    ("file", "error"),
    [
        (GENUINE, ""),
        (STRANGER + GENUINE, ""),
        (IMPOSTOR, f"has another primary key than the pinned {SUBKEY_FINGERPRINT}: not used"),
        # gpg itself rejects a file with both.
        (IMPOSTOR + GENUINE, "lustre: "),
    ],
)
def test_a_key_that_has_the_pinned_key_as_its_subkey_is_rejected(tmp_path: Path, file: str, error: str) -> None:
    """`gpg --export` also finds a key by its subkeys; apt would then trust what the primary key signs."""
    machine = Machine(tmp_path, NAMES)
    machine.fingerprint = SUBKEY_FINGERPRINT
    (tmp_path / "key").write_text(file)
    done = machine.run("6.8.0-1041-aws")
    assert done.returncode == (1 if error else 0), done.stderr
    assert error in done.stderr
    assert (tmp_path / "usr/share/keyrings/muster-lustre-client.gpg").exists() == (not error)


def test_lists_that_cannot_be_fetched_are_an_error(tmp_path: Path) -> None:
    machine = Machine(tmp_path, NAMES)
    machine.fetch_lists = "echo no network >&2; exit 100"
    done = machine.run("6.8.0-1041-aws")
    assert done.returncode == 100
    assert done.stderr.endswith("no network\n")


def test_a_kernel_without_a_client_is_replaced_and_the_machine_restarts_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path, NAMES)
    done = machine.run("6.8.0-1045-aws")
    assert done.returncode == 0, done.stderr
    packages = "linux-image-6.8.0-1041-aws linux-headers-6.8.0-1041-aws lustre-client-modules-6.8.0-1041-aws"
    assert f"--no-install-recommends {packages}\n" in machine.read("calls")
    assert "update-grub" in machine.read("calls")
    assert "modprobe" not in machine.read("calls")
    grub = "GRUB_DEFAULT='Advanced options for Ubuntu>Ubuntu, with Linux 6.8.0-1041-aws'\n"
    assert machine.read("etc/default/grub.d/90-muster.cfg") == grub
    assert machine.read("run/restart").startswith("restart with kernel 6.8.0-1041-aws")
    # The machine came up with the old kernel again: another restart would not help.
    machine.boot("second")
    again = machine.run("6.8.0-1045-aws")
    assert again.returncode == 1
    assert "this machine restarted for kernel 6.8.0-1041-aws but runs 6.8.0-1045-aws" in again.stderr
    assert not (tmp_path / "run/restart").exists()


def test_a_kernel_that_is_installed_with_other_packages_is_only_chosen(tmp_path: Path) -> None:
    machine = Machine(tmp_path, NAMES)
    machine.chosen = f"{tmp_path}/run/kernel"
    done = machine.run("6.8.0-1045-aws")
    assert done.returncode == 0, done.stderr
    assert machine.read("calls") == "apt-get update\n"
    assert machine.read("run/kernel") == "6.8.0-1041-aws\n"
    assert not (tmp_path / "run/restart").exists()
    machine.boot("second")
    assert machine.run("6.8.0-1041-aws").returncode == 0
    assert not (tmp_path / "run/kernel").exists()


def test_a_restart_that_has_not_happened_is_requested_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path, NAMES)
    machine.run("6.8.0-1045-aws")
    (tmp_path / "run/restart").unlink()
    again = machine.run("6.8.0-1045-aws")
    assert again.returncode == 0, again.stderr
    assert machine.read("run/restart").startswith("restart with kernel 6.8.0-1041-aws")


def test_a_repository_without_a_usable_client_is_an_error(tmp_path: Path) -> None:
    machine = Machine(tmp_path, read_package_names(INDEX))
    done = machine.run("6.17.0-1002-aws")
    assert done.returncode == 1
    assert done.stderr.strip().endswith(
        "no Lustre client for kernel 6.17.0-1002-aws, nor one to install; "
        "there are clients for 5.15.0-1084-aws, 6.8.0-1009-aws, 6.8.0-1041-aws"
    )
    assert "install" not in machine.read("calls")
