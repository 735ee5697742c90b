"""The components of a release: every lock and every checksum file of the repository is read, completely."""

from __future__ import annotations

import re
import subprocess

import pytest

from release.components import GO_SUMS, LOCKS, ROOT, Component, list_components, read_go_sums, read_lock
from setup import pins

LOCK = """\
Colorama==0.4.6 ; sys_platform == 'win32' \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
six==1.17.0 \\
    --hash=sha256:{c}
"""
A, B, C = "a" * 64, "b" * 64, "c" * 64


def test_a_lock_gives_packages_with_all_their_checksums() -> None:
    assert list(read_lock(LOCK.format(a=A, b=B, c=C), "my.lock")) == [
        Component("pypi", "colorama", "0.4.6", ("my.lock",), (A, B)),
        Component("pypi", "six", "1.17.0", ("my.lock",), (C,)),
    ]


def test_a_module_is_listed_if_its_source_is_pinned() -> None:
    only_named = "example.com/a/b v1.2.3/go.mod h1:AAAA\nexample.com/c v1.0.0/go.mod h1:AAAA\n"
    (module,) = read_go_sums(f"example.com/a/b v1.2.3 h1:qqo=\n{only_named}", "go.sum")
    assert module == Component("golang", "example.com/a/b", "v1.2.3", ("go.sum",), ("aaaa",))


def test_all_locks_and_checksum_files_are_read() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = listed.stdout.splitlines()
    assert sorted(LOCKS) == [name for name in names if name.endswith("requirements.lock")]
    assert sorted(GO_SUMS) == [name for name in names if name.endswith("go.sum")]
    components = list_components()
    for lock in LOCKS:
        packages = re.findall(r"(?m)^[a-z][\w.-]*==", (ROOT / lock).read_text())
        assert sum(lock in component.pinned_in for component in components if component.kind == "pypi") == len(packages)


def test_each_version_is_listed_once() -> None:
    components = list_components()
    keys = [(component.kind, component.name, component.version) for component in components]
    assert len(set(keys)) == len(keys)
    assert components == sorted(components)


def test_an_image_without_a_digest_has_no_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "OFFICIAL_BASE", "debian")
    (image,) = [component for component in list_components() if component.kind == "docker"]
    assert image.sha256 == ()


def test_only_the_components_that_security_md_names_have_no_checksum() -> None:
    """Pulumi itself is then built from modules that have one."""
    missing = {component.name for component in list_components() if not component.sha256}
    assert missing <= {"pulumi", "pulumi-resource-aws"}
