"""No package of the node images is older than the version that fixed a vulnerability in release/cves.yaml."""

from __future__ import annotations

import subprocess
from collections.abc import Collection, Iterable

import pytest

from release.cves import find_vulnerable_packages, read_table
from setup import pins

DOCKER = ("docker", "run", "--rm", "--network=none", "--entrypoint")


def is_older(version: str, fixed: str) -> bool:
    """Ask dpkg, because nothing else compares versions of Debian packages as apt does."""
    compare = [*DOCKER, "dpkg", pins.NODE_IMAGE, "--compare-versions", version, "lt", fixed]
    return subprocess.run(compare, check=False).returncode == 0


def find_lowest(lines: Iterable[str], names: Collection[str]) -> dict[str, str]:
    """Return the lowest version of each source, of lines with a source and a version: its packages may differ."""
    lowest: dict[str, str] = {}
    for name, version in (line.split() for line in lines):
        before = lowest.setdefault(name, version)
        if name in names and version != before and is_older(version, before):
            lowest[name] = version
    return lowest


@pytest.mark.attack(4)
@pytest.mark.engine
@pytest.mark.parametrize("image", [pins.NODE_IMAGE, pins.SLURM_IMAGE])
def test_no_package_of_the_node_images_is_vulnerable(image: str) -> None:
    show = [*DOCKER, "dpkg-query", image, "-W", "-f", r"${source:Package} ${source:Version}\n"]
    listed = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    names = {name for entry in read_table() for name in entry.debian}
    installed = find_lowest(listed.splitlines(), names)
    assert names <= set(installed)
    assert find_vulnerable_packages(read_table(), installed, is_older) == []


@pytest.mark.engine
@pytest.mark.parametrize("lines", [["munge 0.5.16-10", "munge 0.5.16-9"], ["munge 0.5.16-9", "munge 0.5.16-10"]])
def test_the_oldest_package_of_a_source_counts(lines: list[str]) -> None:
    assert find_lowest(lines, {"munge"}) == {"munge": "0.5.16-9"}


@pytest.mark.engine
def test_an_older_munge_is_noticed() -> None:
    (line,) = find_vulnerable_packages(read_table(), {"munge": "0.5.16-1"}, is_older)
    assert line.startswith("munge 0.5.16-1: CVE-2026-25506 (")
