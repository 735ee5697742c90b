"""Access files: their modes, atomic writes, and an ssh_config that the real ssh accepts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cluster.inventory import NodeSet
from infra.resources import access
from tests.bootstrap.clusters import desired

H200 = NodeSet(group="h200", count=8, static=0, cpus=192, memory_mb=2_000_000)
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n"


def write_access_files(folder: Path, *, admin: bool = False) -> access.Files:
    target = desired(users={"alice": {"uid": 2001, "admin": admin}, "bob": {"uid": 2002}})
    files = access.files(folder, target.inventory.model_copy(update={"sets": (H200,)}), target.spec, KEY)
    access.write(folder, files)
    return files


def read_options(folder: Path, node: str) -> dict[str, str]:
    done = subprocess.run(["ssh", "-G", "-F", folder / "ssh_config", node], capture_output=True, text=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


def test_access_files_have_restrictive_modes_and_leave_no_temporary_files(tmp_path: Path) -> None:
    write_access_files(tmp_path / "s")
    modes = {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "s").iterdir()}
    assert modes == {"inventory.json": 0o644, "id_ed25519": 0o600, "known_hosts": 0o644, "ssh_config": 0o644}


def test_ssh_accepts_the_config(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    write_access_files(folder)
    options = read_options(folder, "gpu-1")
    assert (options["hostname"], options["port"]) == ("10.1.0.21", "22")
    assert options["identityfile"] == str(folder / "id_ed25519")
    assert options["userknownhostsfile"] == str(folder / "known_hosts")
    assert (options["stricthostkeychecking"], options["identitiesonly"]) == ("true", "yes")


@pytest.mark.parametrize(
    ("admin", "users"),
    [
        (False, {"login": "alice", "controller": "root", "gpu-1": "root", "h200-7": "root"}),
        (True, dict.fromkeys(["login", "controller", "gpu-1", "h200-7"], "alice")),
    ],
)
def test_the_operator_is_root_where_the_first_user_may_not_log_in(
    tmp_path: Path, admin: bool, users: dict[str, str]
) -> None:
    write_access_files(tmp_path, admin=admin)
    assert {node: read_options(tmp_path, node)["user"] for node in users} == users


def test_known_hosts_has_names_and_addresses(tmp_path: Path) -> None:
    write_access_files(tmp_path)
    assert "gpu-1,10.1.0.21 ssh-ed25519 AAAAgpu-1\n" in (tmp_path / "known_hosts").read_text()


def test_missing_files_and_too_permissive_modes_are_reported(tmp_path: Path) -> None:
    files = write_access_files(tmp_path)
    assert access.stale(tmp_path, files) == []
    (tmp_path / "ssh_config").unlink()
    (tmp_path / "id_ed25519").chmod(0o644)
    assert access.stale(tmp_path, files) == ["id_ed25519", "ssh_config"]
