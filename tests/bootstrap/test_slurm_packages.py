"""Slurm's own packages: their name does not depend on how they are installed, and an upgrade finds them unpacked."""

from __future__ import annotations

import re
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


@pytest.mark.parametrize("release", SOURCES)
def test_a_pinned_checksum_is_that_of_debian_s_source_index(release: str) -> None:
    """Debian's maintainers took the archive of the same tag: two parties, at different times, got the same file."""
    # What `apt-cache showsrc slurm-wlm` printed on 2026-11-17 for trixie and forky, whose signatures apt had checked.
    text = (Path(__file__).parent / "slurm_sources.txt").read_text()
    sums = dict(re.findall(r"(?m)^ ([0-9a-f]{64}) \d+ slurm-wlm_([\d.]+)\.orig\.tar\.gz$", text))
    recorded = {version: digest for digest, version in sums.items()}
    assert recorded[SOURCES[release].version] == SOURCES[release].sha256


@pytest.mark.parametrize("release", SOURCES)
def test_a_source_is_the_archive_of_the_version_s_tag(release: str) -> None:
    tag = f"slurm-{SOURCES[release].version.replace('.', '-')}-1"
    assert SOURCES[release].version.startswith(f"{release}.")
    assert all(address.endswith(f"/refs/tags/{tag}.tar.gz") for address in SOURCES[release].addresses)


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
