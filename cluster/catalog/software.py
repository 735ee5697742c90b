"""The software table: which versions of driver, fabric and NCCL nodes may have, and how to read a node's versions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

DATA = Path(__file__).with_name("data")
Hardware = Literal["gpu", "nvswitch", "efa", "lustre"]


@dataclass(frozen=True)
class Installer:
    """An archive from which a component can be installed."""

    address: str
    sha256: str


@dataclass(frozen=True)
class Component:
    """A piece of software whose version matters. The fields are those of data/software.yaml."""

    name: str
    title: str
    has: frozenset[Hardware]
    """Only machines with all of this hardware need the component."""
    pattern: str
    """Regular expression whose first group is the version."""
    why: str
    """Why the version is restricted, for error messages."""
    source: str
    version: str = ""
    """Version in the reviewed image, or version to install; empty if another component or the lock file decides."""
    least: str = ""
    """Oldest version that is allowed."""
    same_as: str = ""
    """Name of the component that must have the same version."""
    file: str = ""
    """File that contains the version."""
    command: str = ""
    """Command that prints the version."""
    lock: bool = False
    """Whether the version comes from the lock file of the training environment."""
    optional: bool = False
    installer: str = ""
    """Name of the component that installs this one."""
    install: Installer | None = None

    @property
    def reading(self) -> str:
        """Shell text that prints the version; empty if it is not read from the node."""
        return f"cat {self.file}" if self.file else self.command

    def parse_version(self, text: str) -> str:
        """Return the version in the output of `reading` or in the lock file; empty if there is none."""
        match = re.search(self.pattern, text)
        return match[1].strip(".") if match else ""


@dataclass(frozen=True)
class VersionFault:
    """A component that is missing or has a version that is not allowed."""

    component: Component
    value: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.component.title} {self.value}; allowed: {self.allowed} ({self.component.why})"


def list_required(hardware: Collection[Hardware]) -> tuple[Component, ...]:
    """Return the components that a machine with this hardware must have."""
    return tuple(component for component in components().values() if component.has.issubset(hardware))


def list_missing(required: Collection[Component], texts: Mapping[str, str]) -> tuple[Component, ...]:
    """Return the components that are not on the machine and that can be installed.

    `texts` is the output of each component's `reading`, by name.
    """
    return tuple(component for component in required if component.install and not texts.get(component.name, "").strip())


def find_faults(required: Collection[Component], texts: Mapping[str, str]) -> list[VersionFault]:
    """Return the components with a version that is not allowed, except those that will be installed."""
    coming = {component.name for component in list_missing(required, texts)}
    judged = [c for c in required if c.name not in coming and c.installer not in coming]
    return [fault for component in judged if (fault := _find_fault(component, texts))]


def read_lock(lock: str) -> dict[str, str]:
    """Return the line of each component in the lock file of the training environment, by name."""
    locked = (component for component in components().values() if component.lock)
    return {c.name: match[0] for c in locked if (match := re.search(c.pattern, lock))}


@cache
def components() -> Mapping[str, Component]:
    """Return all components by name."""
    return {name: _component(name, entry) for name, entry in _table()["components"].items()}


def image() -> Mapping[str, str]:
    """Return name, release notes and remarks of the machine image that the table was reviewed with."""
    described: dict[str, str] = _table()["image"]
    return described


def _find_fault(component: Component, texts: Mapping[str, str]) -> VersionFault | None:
    text = texts.get(component.name, "")
    if not text.strip():
        return None if component.optional else VersionFault(component, "is missing", _allowed(component, texts))
    version = component.parse_version(text)
    if not version:
        first_line = text.strip().splitlines()[0]
        return VersionFault(component, f"shows no version ('{first_line}')", _allowed(component, texts))
    if component.same_as:
        fits = version == _same_version(component, texts)
    else:
        fits = _sort_key(version) >= _sort_key(component.least)
    return None if fits else VersionFault(component, version, _allowed(component, texts))


def _allowed(component: Component, texts: Mapping[str, str]) -> str:
    if component.same_as:
        version = _same_version(component, texts) or "the same"
        return f"{version}, the version of {components()[component.same_as].title}"
    return f"{component.least} or newer"


def _same_version(component: Component, texts: Mapping[str, str]) -> str:
    other = components()[component.same_as]
    return other.parse_version(texts.get(other.name, ""))


def _sort_key(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in version.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _component(name: str, entry: dict[str, Any]) -> Component:
    fields = {"name": name, **entry, "has": frozenset(entry["has"])}
    if "install" in fields:
        fields["install"] = Installer(**fields["install"])
    return Component(**fields)


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load((DATA / "software.yaml").read_text())
    return table
