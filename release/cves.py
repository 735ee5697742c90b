"""The table of vulnerabilities, cves.yaml, and the comparison with pinned versions: python -m release.cves."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from release.components import Component, list_components

TABLE = Path(__file__).with_name("cves.yaml")


class Vulnerability(BaseModel):
    """An entry of cves.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)

    id: str = Field(pattern=r"^CVE-\d{4}-\d{4,}( to CVE-\d{4}-\d{4,})?$")
    what: str
    source: str
    software: str = ""
    fixed: tuple[str, ...] = ()
    debian: dict[str, str] = {}

    @model_validator(mode="after")
    def _compares_something(self) -> Vulnerability:
        if bool(self.software) != bool(self.fixed):
            raise ValueError("software and fixed belong together")
        if not self.software and not self.debian:
            raise ValueError("neither software nor debian: the entry compares nothing")
        return self


def main() -> int:
    """Compare all pinned versions with the table, print the result and return the exit code."""
    entries = read_table()
    problems = find_vulnerable(entries, list_components())
    reviewed = _load()["reviewed"]
    print("\n".join(problems) or f"{len(entries)} entries, reviewed on {reviewed}: all pinned versions are fixed")
    return 1 if problems else 0


def read_table() -> list[Vulnerability]:
    """Return the entries of cves.yaml."""
    return [Vulnerability.model_validate(entry) for entry in _load()["vulnerabilities"]]


def read_accepted() -> Mapping[str, str]:
    """Return, by id, why a vulnerability of a Python package is accepted."""
    accepted: Mapping[str, str] = _load()["accepted"]
    return accepted


def find_vulnerable(entries: Iterable[Vulnerability], components: Iterable[Component]) -> list[str]:
    """Return a line for each pinned version that is vulnerable, and for each entry that matches no component."""
    versions: dict[str, set[str]] = {}
    for component in components:
        versions.setdefault(component.name, set()).add(component.version)
    problems = []
    for entry in entries:
        if entry.software and entry.software not in versions:
            problems.append(f"{entry.id}: no pinned component is named {entry.software!r}: correct or remove the entry")
        for version in sorted(versions.get(entry.software, ())):
            if not is_fixed(version, entry.fixed):
                fixed = ", ".join(entry.fixed)
                problems.append(f"{entry.software} {version}: {entry.id} ({entry.what}); fixed in {fixed}")
    return problems


def find_vulnerable_packages(
    entries: Iterable[Vulnerability], installed: Mapping[str, str], is_older: Callable[[str, str], bool]
) -> list[str]:
    """Return a line for each installed Debian package, by its source, that is older than the fixed version."""
    return [
        f"{name} {installed[name]}: {entry.id} ({entry.what}); fixed in {fixed}"
        for entry in entries
        for name, fixed in entry.debian.items()
        if name in installed and is_older(installed[name], fixed)
    ]


def is_fixed(version: str, fixed: Iterable[str]) -> bool:
    """Return whether a version has a fix: its branch has, or it is newer than all fixed versions."""
    own, firsts = _parse(version), [_parse(first) for first in fixed]
    return own >= max(firsts) or any(own[:-1] == first[:-1] and own >= first for first in firsts)


def _parse(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


@cache
def _load() -> Mapping[str, Any]:
    table: Mapping[str, Any] = yaml.safe_load(TABLE.read_text())
    return table


if __name__ == "__main__":
    sys.exit(main())
