"""The software lock: which versions of driver, fabric and NCCL nodes may have, and how a node says what it has."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

DATA = Path(__file__).with_name("data")
Part = Literal["gpu", "nvswitch", "efa", "lustre"]


@dataclass(frozen=True)
class Install:
    address: str
    sha256: str


@dataclass(frozen=True)
class Component:
    name: str
    title: str
    has: frozenset[Part]
    """What a machine must have for this to count."""
    pattern: str
    why: str
    source: str
    version: str = ""
    """Of the image that was reviewed, or what is installed; empty where another component or the lock file decides."""
    least: str = ""
    same_as: str = ""
    file: str = ""
    command: str = ""
    lock: bool = False
    """It is in the lock file of the training environment."""
    optional: bool = False
    installer: str = ""
    """Name of the component that brings it."""
    install: Install | None = None

    @property
    def reading(self) -> str:
        """Shell text that prints what the version is found in; nothing where no node has to be asked."""
        return f"cat {self.file}" if self.file else self.command

    def found(self, text: str) -> str:
        """The version that stands in what a node, or the lock file, said."""
        match = re.search(self.pattern, text)
        return match[1].strip(".") if match else ""


@dataclass(frozen=True)
class Fault:
    component: Component
    value: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.component.title} {self.value}; allowed: {self.allowed} ({self.component.why})"


def wanted(parts: Collection[Part]) -> tuple[Component, ...]:
    """What a machine that has these parts must have."""
    return tuple(one for one in components().values() if one.has.issubset(parts))


def lacking(chosen: Collection[Component], texts: Mapping[str, str]) -> tuple[Component, ...]:
    """What is to be installed: nothing of it is there, and there is something to install it from."""
    return tuple(one for one in chosen if one.install and not texts.get(one.name, "").strip())


def faults(chosen: Collection[Component], texts: Mapping[str, str]) -> list[Fault]:
    """`texts`: what was read, by component. What an installer will bring is not judged before."""
    coming = {one.name for one in lacking(chosen, texts)}
    judged = [one for one in chosen if one.name not in coming and one.installer not in coming]
    return [fault for one in judged if (fault := _fault(one, texts))]


def from_lock(lock: str) -> dict[str, str]:
    """What the lock file of the training environment says, by component."""
    kept = (one for one in components().values() if one.lock)
    return {one.name: match[0] for one in kept if (match := re.search(one.pattern, lock))}


@cache
def components() -> Mapping[str, Component]:
    return {name: _component(name, entry) for name, entry in _table()["components"].items()}


def image() -> Mapping[str, str]:
    """Name and release notes of the image whose versions the table has, and what to know about them."""
    found: dict[str, str] = _table()["image"]
    return found


def _fault(one: Component, texts: Mapping[str, str]) -> Fault | None:
    text = texts.get(one.name, "")
    if not text.strip():
        return None if one.optional else Fault(one, "is not there", _allowed(one, texts))
    version = one.found(text)
    if not version:
        said = text.strip().splitlines()[0]
        return Fault(one, f"says no version ('{said}')", _allowed(one, texts))
    fits = version == _other(one, texts) if one.same_as else _order(version) >= _order(one.least)
    return None if fits else Fault(one, version, _allowed(one, texts))


def _allowed(one: Component, texts: Mapping[str, str]) -> str:
    if one.same_as:
        return f"{_other(one, texts) or 'the same'}, the version of {components()[one.same_as].title}"
    return f"{one.least} or newer"


def _other(one: Component, texts: Mapping[str, str]) -> str:
    other = components()[one.same_as]
    return other.found(texts.get(other.name, ""))


def _order(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in version.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _component(name: str, entry: dict[str, Any]) -> Component:
    given = {"name": name, **entry, "has": frozenset(entry["has"])}
    if "install" in given:
        given["install"] = Install(**given["install"])
    return Component(**given)


@cache
def _table() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((DATA / "software.yaml").read_text())
    return read
