"""Access files: their modes, atomic writes, and an ssh_config that the real ssh accepts."""

from __future__ import annotations

import subprocess
from pathlib import Path

from infra.resources import access
from tests.bootstrap.clusters import desired

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n"


def write_access_files(folder: Path) -> access.Files:
    target = desired(users={"alice": {"uid": 2001}, "bob": {"uid": 2002}})
    files = access.files(folder, target.inventory, target.spec, KEY)
    access.write(folder, files)
    return files


def test_access_files_have_restrictive_modes_and_leave_no_temporary_files(tmp_path: Path) -> None:
    write_access_files(tmp_path / "s")
    modes = {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "s").iterdir()}
    assert modes == {"inventory.json": 0o644, "id_ed25519": 0o600, "known_hosts": 0o644, "ssh_config": 0o644}


def test_ssh_accepts_the_config(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    write_access_files(folder)
    done = subprocess.run(["ssh", "-G", "-F", folder / "ssh_config", "gpu-1"], capture_output=True, text=True)
    options = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert (options["hostname"], options["port"], options["user"]) == ("10.1.0.21", "22", "alice")
    assert options["identityfile"] == str(folder / "id_ed25519")
    assert options["userknownhostsfile"] == str(folder / "known_hosts")
    assert (options["stricthostkeychecking"], options["identitiesonly"]) == ("true", "yes")


def test_known_hosts_has_names_and_addresses(tmp_path: Path) -> None:
    write_access_files(tmp_path)
    assert "gpu-1,10.1.0.21 ssh-ed25519 AAAAgpu-1\n" in (tmp_path / "known_hosts").read_text()


def test_missing_files_and_too_permissive_modes_are_reported(tmp_path: Path) -> None:
    files = write_access_files(tmp_path)
    assert access.stale(tmp_path, files) == []
    (tmp_path / "ssh_config").unlink()
    (tmp_path / "id_ed25519").chmod(0o644)
    assert access.stale(tmp_path, files) == ["id_ed25519", "ssh_config"]
