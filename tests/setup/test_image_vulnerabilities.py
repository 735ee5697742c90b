"""No package of the node image is older than the version that fixed a vulnerability in release/cves.yaml."""

from __future__ import annotations

import subprocess

import pytest

from release.cves import find_vulnerable_packages, read_table
from setup import pins

DOCKER = ("docker", "run", "--rm", "--network=none", "--entrypoint")


def is_older(version: str, fixed: str) -> bool:
    """Ask dpkg, because nothing else compares versions of Debian packages as apt does."""
    compare = [*DOCKER, "dpkg", pins.NODE_IMAGE, "--compare-versions", version, "lt", fixed]
    return subprocess.run(compare, check=False).returncode == 0


@pytest.mark.engine
def test_no_package_of_the_node_image_is_vulnerable() -> None:
    show = [*DOCKER, "dpkg-query", pins.NODE_IMAGE, "-W", "-f", r"${source:Package} ${Version}\n"]
    listed = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    installed = dict(line.split() for line in listed.splitlines())
    assert {name for entry in read_table() for name in entry.debian} <= set(installed)
    assert find_vulnerable_packages(read_table(), installed, is_older) == []


@pytest.mark.engine
def test_an_older_munge_is_noticed() -> None:
    (line,) = find_vulnerable_packages(read_table(), {"munge": "0.5.16-1"}, is_older)
    assert line.startswith("munge 0.5.16-1: CVE-2026-25506 (")
