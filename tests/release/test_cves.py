"""The table of vulnerabilities: its rules, and that every entry compares something with a version that we install."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from release import cves
from release.components import Component, list_components
from release.cves import Vulnerability, find_vulnerable, find_vulnerable_packages, is_fixed, read_table

SLURM = Vulnerability(id="CVE-2099-0001", what="a hole", source="s", software="slurm", fixed=("23.11.9", "24.05.2"))


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("23.11.8", False), ("23.11.9", True), ("23.11.10", True), ("24.05.1", False), ("24.05.2", True),
        # A newer branch has the fix; an older one, or one between, that is not listed has none.
        ("24.11.0", True), ("23.02.99", False), ("22.05.0", False),
    ],
)  # fmt: skip
def test_a_version_is_fixed_if_its_branch_is_or_if_it_is_newer_than_all(version: str, expected: bool) -> None:
    assert is_fixed(version, SLURM.fixed) is expected


def test_a_vulnerable_pin_is_named_with_the_fixed_versions() -> None:
    parts = [Component("generic", "slurm", version, ()) for version in ("24.05.1", "24.11.5")]
    line = "slurm 24.05.1: CVE-2099-0001 (a hole); fixed in 23.11.9, 24.05.2"
    assert find_vulnerable([SLURM], parts) == [line]


def test_an_entry_for_software_that_nothing_pins_is_refused() -> None:
    (line,) = find_vulnerable([SLURM], [])
    assert line == "CVE-2099-0001: no pinned component is named 'slurm': correct or remove the entry"


@pytest.mark.parametrize(
    "more",
    [{}, {"software": "slurm"}, {"fixed": ["1.0"]}, {"debian": {"munge": "1"}, "id": "munge"}, {"sofware": "slurm"}],
)
def test_an_entry_that_compares_nothing_is_refused(more: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Vulnerability.model_validate({"id": "CVE-2099-0001", "what": "a hole", "source": "s", **more})


@pytest.mark.attack(4)
def test_no_pinned_version_is_vulnerable(capsys: pytest.CaptureFixture[str]) -> None:
    assert find_vulnerable(read_table(), list_components()) == []
    assert cves.main() == 0
    assert capsys.readouterr().out.endswith(": all pinned versions are fixed\n")


def test_an_installed_package_is_compared_by_its_source() -> None:
    entry = Vulnerability(id="CVE-2099-0001", what="a hole", source="s", debian={"munge": "2"})
    assert find_vulnerable_packages([entry], {"munge": "1", "slurm-wlm": "1"}, str.__lt__) == [
        "munge 1: CVE-2099-0001 (a hole); fixed in 2"
    ]
    assert find_vulnerable_packages([entry], {"munge": "2"}, str.__lt__) == []
    assert find_vulnerable_packages([entry], {}, str.__lt__) == []
