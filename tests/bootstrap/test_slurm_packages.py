"""Slurm's own packages: their name does not depend on how they are installed, and an upgrade finds them unpacked."""

from __future__ import annotations

import subprocess
import tarfile
from hashlib import sha256
from pathlib import Path
from typing import get_args

import pytest

from bootstrap.steps.cloud import slurm_packages
from bootstrap.steps.cloud.slurm_packages import SCRIPT, SOURCES, PackageBuild
from cluster.spec.model import SlurmRelease


def test_every_release_has_a_pinned_source() -> None:
    assert tuple(SOURCES) == get_args(SlurmRelease)


def test_nodes_that_are_launched_later_look_for_the_same_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A running cluster builds nothing again, so another version of the script must find what is there."""
    build = PackageBuild("24.11", "ubuntu 22.04", ("store",), "/shared")
    before = build.render_script("wait")
    monkeypatch.setattr(slurm_packages, "SCRIPT", SCRIPT + "# another version\n")
    after = build.render_script("wait")
    assert after != before
    assert _read_key(after) == _read_key(before) == build.key
    assert build.key != PackageBuild("26.05", "ubuntu 22.04", ("store",), "/shared").key
    assert build.key != PackageBuild("24.11", "ubuntu 24.04", ("store",), "/shared").key


def test_an_upgrade_finds_all_packages_of_a_release_and_nothing_is_installed(tmp_path: Path) -> None:
    (tmp_path / "slurm-smd_26.05.5-1_amd64.deb").write_text("new")
    with tarfile.open(tmp_path / "stored.tar", "w") as tar:
        tar.add(tmp_path / "slurm-smd_26.05.5-1_amd64.deb", "./slurm-smd_26.05.5-1_amd64.deb")
    (tmp_path / "apt-get").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "store").write_text(f'#!/bin/sh\n[ "$1" = store ] || cp {tmp_path}/stored.tar "$2"\n')
    for program in ("apt-get", "store"):
        (tmp_path / program).chmod(0o755)
    published = tmp_path / "shared" / "slurm" / "26.05"
    published.mkdir(parents=True)
    (published / "outdated.deb").write_text("")
    variables = {
        "MODE": "publish", "KEY": "k", "SOURCES": "''", "SHA256": "''", "WORK": tmp_path / "work",
        "PUBLISHED": published, "PACKAGES": tmp_path / "packages", "NAMES": "''", "SLURM_UID": "1",
        "SUMS": tmp_path / "sums", "STORE": tmp_path / "store", "PATH": f"{tmp_path}:/usr/bin:/bin",
    }  # fmt: skip
    text = "".join(f"{name}={value}\n" for name, value in variables.items())
    done = subprocess.run(["sh", "-c", text + SCRIPT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [file.name for file in published.iterdir()] == ["slurm-smd_26.05.5-1_amd64.deb"]
    assert (tmp_path / "sums").read_text() == f"{sha256(b'new').hexdigest()}  slurm-smd_26.05.5-1_amd64.deb\n"


def _read_key(script: str) -> str:
    return next(line.partition("=")[2] for line in script.splitlines() if line.startswith("KEY="))
