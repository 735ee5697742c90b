"""Instance types: hardware and network cards of a machine, and how it can be bought."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from cluster.catalog.similar import find_similar

DATA = Path(__file__).with_name("data")
_ADDED: dict[str, InstanceType] = {}


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a machine."""

    count: int = 0
    type: str = ""
    """Name in Slurm, e.g. h100."""
    name: str = ""
    """Name used by AWS, e.g. H100."""
    memory_mb: int = 0
    """Memory of one GPU in MiB."""


@dataclass(frozen=True)
class Card:
    """A network card."""

    index: int
    interfaces: int
    """Largest number of network interfaces on the card."""
    efa: bool
    gbps: float


@dataclass(frozen=True)
class Busbw:
    """A published measurement of nccl-tests all_reduce."""

    nodes: int
    size: int
    """Message size in bytes."""
    gb_per_s: float
    """Bus bandwidth."""
    source: str


@dataclass(frozen=True)
class InstanceType:
    """A machine that the cloud rents."""

    name: str
    family: str
    vcpus: int
    cores: int
    memory_mb: int
    architecture: str
    gpus: Gpus
    neuron: int
    """Number of Trainium chips."""
    network_cards: tuple[Card, ...]
    efa_interfaces: int
    """Largest number of EFA interfaces; 0 if the type has no EFA."""
    efa_generation: int | None
    ip_every: int
    """With `ip_bandwidth`, every n-th card gets another IP interface; this is n."""
    instance_store: tuple[int, int]
    """Number of local NVMe disks, and size of each in GB."""
    nvlink: int | None
    """Generation; None if the GPUs are connected by PCIe or there is only one."""
    ultraserver: int
    """Machines of the largest UltraServer; 0 if NVLink ends at the machine."""
    sockets: int | None
    """Number of CPU sockets; None if it is not documented."""
    purchases: frozenset[str]
    placement: bool
    """Whether the type can be in a cluster placement group."""
    auto_recovery: bool
    regions: frozenset[str]
    busbw: tuple[Busbw, ...]


class UnknownInstanceType(ValueError):
    """A name that is not in the catalog, with the most similar names that are."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nearest = tuple(find_similar(name, all_types()))
        super().__init__(f"'{name}' is not in the catalog; nearest: {', '.join(self.nearest) or 'none'}")


class UnverifiedInstanceType(ValueError):
    """A type that exists, but whose sources contradict each other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.why = unverified()[name]
        super().__init__(f"'{name}' is not supported: {self.why}")


def instance(name: str) -> InstanceType:
    """Return the instance type of this name; raise UnknownInstanceType or UnverifiedInstanceType."""
    if name in unverified():
        raise UnverifiedInstanceType(name)
    if name not in all_types():
        raise UnknownInstanceType(name)
    return all_types()[name]


def all_types() -> Mapping[str, InstanceType]:
    """Return all supported instance types by name: those of the catalog, then those that were added or replaced."""
    return {**_catalog(), **_ADDED}


def add_types(entries: Mapping[str, dict[str, Any]]) -> None:
    """Add types for this process, in the form of instances.json; types of the catalog stay as they are."""
    reviewed = _reviewed()
    for name, entry in entries.items():
        if name not in _catalog() and name not in unverified():
            _ADDED[name] = _type(name, entry, reviewed)


def replace_types(entries: Mapping[str, dict[str, Any]]) -> None:
    """Replace types of the catalog for this process, in the form of instances.json."""
    for name, entry in entries.items():
        _ADDED[name] = _type(name, entry, _reviewed())


def find_entry(name: str) -> dict[str, Any] | None:
    """Return the catalog's entry of a type, in the form of instances.json; None if the catalog does not have it."""
    return _entries().get(name)


def is_reviewed(name: str) -> bool:
    """Return whether a type is in the catalog itself."""
    return name in _catalog()


def unverified() -> Mapping[str, str]:
    """Return the types that are not supported, with the reason."""
    reasons: dict[str, str] = _reviewed()["unverified"]
    return reasons


def read_caveat(family: str) -> str:
    """Return what is assumed about a family that only AWS describes; empty if nothing is."""
    return str(_reviewed()["described"].get(family, {}).get("caveat", ""))


@cache
def _catalog() -> Mapping[str, InstanceType]:
    return {name: _type(name, entry, _reviewed()) for name, entry in _entries().items()}


@cache
def _entries() -> dict[str, dict[str, Any]]:
    return {**json.loads((DATA / "instances.json").read_text())["types"], **_reviewed()["documented"]}


@cache
def _reviewed() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load((DATA / "reviewed.yaml").read_text())
    return data


def _type(name: str, entry: dict[str, Any], reviewed: dict[str, Any]) -> InstanceType:
    family = name.partition(".")[0]
    facts = {**reviewed["families"], **reviewed["described"]}.get(family, {})
    gpus = _gpus(entry["gpus"], facts.get("gpu", ""))
    disks, size = entry["store"][0] if entry["store"] else (0, 0)
    return InstanceType(
        name=name,
        family=family,
        vcpus=entry["vcpus"],
        cores=entry["cores"],
        memory_mb=entry["memory_mb"],
        architecture=entry["architecture"],
        gpus=gpus,
        neuron=sum(chip["count"] for chip in entry["neuron"]),
        network_cards=_cards(entry["cards"]),
        efa_interfaces=entry["efa"],
        efa_generation=facts.get("efa") if entry["efa"] else None,
        ip_every=facts.get("ip_every", 1),
        instance_store=(disks, size),
        nvlink=facts.get("nvlink") if gpus.count > 1 else None,
        ultraserver=facts.get("ultraserver", 0),
        sockets=facts.get("sockets") if gpus.count > 1 else None,
        purchases=_purchases(entry["purchases"]),
        placement=entry["placement"],
        auto_recovery=entry["recovery"],
        regions=frozenset(entry["regions"]),
        busbw=tuple(Busbw(*row) for row in reviewed["busbw"].get(name, ())),
    )


def _gpus(entries: list[dict[str, Any]], kind: str) -> Gpus:
    if not entries:
        return Gpus()
    name = entries[0]["name"]
    # A family that was not reviewed has no name for Slurm: use AWS's name without spaces.
    in_slurm = kind or re.sub(r"[^a-z0-9]", "", name.lower())
    return Gpus(entries[0]["count"], in_slurm, name, entries[0]["memory_mb"])


def _cards(runs: list[list[Any]]) -> tuple[Card, ...]:
    shapes = [shape for count, *shape in runs for _ in range(count)]
    return tuple(Card(index, interfaces, efa, gbps) for index, (interfaces, gbps, efa) in enumerate(shapes))


def _purchases(usages: list[str]) -> frozenset[str]:
    """Add `reservation` to types that are sold on demand, because reservations hold on-demand capacity."""
    return frozenset(usages) | ({"reservation"} if "on-demand" in usages else frozenset())
