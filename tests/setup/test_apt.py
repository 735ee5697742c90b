"""Which packages apt installs, and the mirrors of the node image: the machine's own sources, in both formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from setup import apt, apt_sources
from setup.apt_sources import Mirrors, Source
from setup.facts import Engine, Facts, parse_os_release
from tests.setup.machine import ALL, machine

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
DEB822 = f"""\
Types: deb
# a comment between the fields
URIs: http://mirror.test/debian/
Suites: bookworm bookworm-updates
Components: main contrib
Signed-By: {KEYRING}

Types: deb deb-src
URIs: http://mirror.test/debian-security
Suites: bookworm-security
Components: main

Types: deb-src
URIs: http://sources.test/debian
Suites: bookworm

Enabled: no
Types: deb
URIs: http://off.test/debian
Suites: bookworm
"""
ONE_LINE = """\
# deb http://off.test/debian bookworm main
deb http://mirror.test/debian/ bookworm main contrib
deb [arch=amd64 signed-by=/etc/apt/keyrings/own.gpg] https://own.test/debian bookworm-updates main
deb-src http://sources.test/debian bookworm main
  deb   http://mirror.test/debian-security   bookworm-security   main
"""
EVERYTHING = frozenset({*apt.PROVIDERS, "ensurepip"})


def test_deb822_sources_are_parsed() -> None:
    assert apt_sources.parse_deb822(DEB822) == [
        Source("http://mirror.test/debian", "bookworm", KEYRING),
        Source("http://mirror.test/debian", "bookworm-updates", KEYRING),
        Source("http://mirror.test/debian-security", "bookworm-security"),
    ]


def test_one_line_sources_are_parsed() -> None:
    assert apt_sources.parse_lines(ONE_LINE) == [
        Source("http://mirror.test/debian", "bookworm"),
        Source("https://own.test/debian", "bookworm-updates", "/etc/apt/keyrings/own.gpg"),
        Source("http://mirror.test/debian-security", "bookworm-security"),
    ]


def test_all_source_files_of_the_machine_are_read(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("deb http://a.test/debian trixie main\n")
    (tmp_path / "sources.list.d" / "b.list").write_text("deb http://b.test/debian trixie main\n")
    (tmp_path / "sources.list.d" / "c.sources").write_text("Types: deb\nURIs: http://c.test/debian\nSuites: trixie\n")
    (tmp_path / "sources.list.d" / "d.sources.bak").write_text(
        "Types: deb\nURIs: http://d.test/debian\nSuites: trixie\n"
    )
    assert [source.uri[7] for source in apt_sources.read_sources(tmp_path)] == ["a", "b", "c"]


def test_mirrors_use_the_suite_of_the_nodes() -> None:
    mirrors = apt_sources.find_mirrors(tuple(apt_sources.parse_deb822(DEB822)), "bookworm", "trixie")
    assert mirrors == Mirrors(
        Source("http://mirror.test/debian", "trixie", KEYRING),
        Source("http://mirror.test/debian", "trixie-updates", KEYRING),
        Source("http://mirror.test/debian-security", "trixie-security"),
    )
    rendered = apt_sources.render_sources(mirrors)
    assert [source.suite for source in apt_sources.parse_deb822(rendered)] == [
        "trixie",
        "trixie-updates",
        "trixie-security",
    ]


def test_suites_that_the_machine_lacks_are_not_added() -> None:
    mirrors = apt_sources.find_mirrors((Source("http://mirror.test/debian", "stable"),), "trixie", "trixie")
    assert mirrors == Mirrors(Source("http://mirror.test/debian", "trixie"))


def test_a_mirror_list_is_replaced_by_its_first_mirror() -> None:
    source = Source("mirror+file:/etc/apt/mirrors/debian.list", "trixie")
    read = {
        Path("/etc/apt/mirrors/debian.list"): "# cloud\nhttps://cdn.test/debian/ priority:1\nhttps://b.test/debian\n"
    }
    mirrors = apt_sources.find_mirrors((source,), "trixie", "trixie", read.__getitem__)
    assert mirrors == Mirrors(Source("https://cdn.test/debian", "trixie"))


def test_a_machine_without_a_usable_mirror_has_none() -> None:
    sources = (Source("cdrom:[Debian]", "trixie"), Source("https://other.test/apt", "cloud-sdk-trixie"))
    assert apt_sources.find_mirrors(sources, "trixie", "trixie") is None


@pytest.mark.parametrize(
    ("facts", "names"),
    [
        (machine(), ()),
        (machine(lacking=frozenset({"go", "debootstrap", "dockerd", "ensurepip"})), ()),
        (machine(lacking=EVERYTHING, root=False, missing=ALL), ()),
        (machine(lacking=EVERYTHING, debian=False, missing=ALL), ()),
        (machine(lacking=frozenset({"shellcheck", "ssh"})), ("openssh-client", "shellcheck")),
        (
            machine(lacking=EVERYTHING, missing=frozenset({"venv"}), engine=Engine("absent"), uses_engine=False),
            ("openssh-client", "python3.13-venv", "shellcheck"),
        ),
        (
            machine(lacking=frozenset({"debootstrap"}), missing=frozenset({"image"})),
            ("debian-archive-keyring", "debootstrap"),
        ),
        (
            machine(lacking=frozenset({"debootstrap"}), unknown=frozenset({"image"}), engine=Engine("stopped")),
            ("debian-archive-keyring", "debootstrap"),
        ),
        (machine(lacking=frozenset({"go"}), missing=frozenset({"pulumi"}), reach={"release": True}), ()),
        (machine(lacking=frozenset({"go"}), missing=frozenset({"pulumi"}), reach={"release": False}), ("golang-go",)),
        (
            machine(lacking=EVERYTHING, missing=ALL, engine=Engine("absent")),
            (
                "debian-archive-keyring",
                "debootstrap",
                "docker.io",
                "golang-go",
                "openssh-client",
                "python3.13-venv",
                "shellcheck",
            ),
        ),
    ],
)
def test_apt_installs_only_packages_that_are_missing_and_needed(facts: Facts, names: tuple[str, ...]) -> None:
    assert apt.packages(facts) == names


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('ID=debian\nVERSION_CODENAME=trixie\nPRETTY_NAME="Debian 13"\n', ("debian", "trixie", "Debian 13", True)),
        ("ID=linuxmint\nID_LIKE='ubuntu debian'\nVERSION_CODENAME=xia\n", ("linuxmint", "xia", "linuxmint", True)),
        ('ID=fedora\nPRETTY_NAME="Fedora Linux 43"\n', ("fedora", "", "Fedora Linux 43", False)),
        ("", ("unknown", "", "unknown", False)),
    ],
)
def test_os_release_is_parsed(text: str, expected: tuple[str, str, str, bool]) -> None:
    distribution = parse_os_release(text)
    actual = (distribution.name, distribution.codename, distribution.title, distribution.debian_like)
    assert actual == expected
