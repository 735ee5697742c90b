"""Instance types: what one machine has, what its network cards can do, how it can be bought."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from cluster.catalog.near import near

DATA = Path(__file__).with_name("data")


@dataclass(frozen=True)
class Gpus:
    count: int = 0
    type: str = ""
    """As Slurm knows it: h100."""
    name: str = ""
    """As AWS calls it: H100."""
    memory_mb: int = 0
    """Of one."""


@dataclass(frozen=True)
class Card:
    """One network card."""

    index: int
    interfaces: int
    """Most interfaces that may be on it."""
    efa: bool
    gbps: float


@dataclass(frozen=True)
class Busbw:
    """What somebody measured with nccl-tests all_reduce, in GB/s of bus bandwidth."""

    nodes: int
    size: int
    """Bytes."""
    gb_per_s: float
    source: str


@dataclass(frozen=True)
class InstanceType:
    name: str
    family: str
    vcpus: int
    cores: int
    memory_mb: int
    architecture: str
    gpus: Gpus
    neuron: int
    """Trainium chips."""
    network_cards: tuple[Card, ...]
    efa_interfaces: int
    """Most EFA interfaces; 0 where the type has no EFA."""
    efa_generation: int | None
    ip_every: int
    """Every how many cards a further IP interface makes sense."""
    instance_store: tuple[int, int]
    """Local NVMe disks and GB of each."""
    nvlink: int | None
    """Generation, None where GPUs speak over PCIe or there is only one."""
    sockets: int | None
    """None where nobody documents it."""
    purchases: frozenset[str]
    placement: bool
    """Whether a cluster placement group takes it."""
    auto_recovery: bool
    regions: frozenset[str]
    busbw: tuple[Busbw, ...]


class UnknownInstanceType(ValueError):
    """A name the catalog does not have, with the nearest ones it has."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nearest = tuple(near(name, all_types()))
        super().__init__(f"'{name}' is not in the catalog; nearest: {', '.join(self.nearest) or 'none'}")


class UnverifiedInstanceType(ValueError):
    """A type that exists, but about which the sources contradict each other."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.why = unverified()[name]
        super().__init__(f"'{name}' is refused: {self.why}")


def instance(name: str) -> InstanceType:
    """The type of that name; raises UnknownInstanceType or UnverifiedInstanceType."""
    if name in unverified():
        raise UnverifiedInstanceType(name)
    if name not in all_types():
        raise UnknownInstanceType(name)
    return all_types()[name]


@cache
def all_types() -> Mapping[str, InstanceType]:
    described = json.loads((DATA / "instances.json").read_text())["types"]
    reviewed = _reviewed()
    return {name: _type(name, entry, reviewed) for name, entry in described.items()}


def unverified() -> Mapping[str, str]:
    """Types that are refused, and why."""
    found: dict[str, str] = _reviewed()["unverified"]
    return found


@cache
def _reviewed() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((DATA / "reviewed.yaml").read_text())
    return read


def _type(name: str, entry: dict[str, Any], reviewed: dict[str, Any]) -> InstanceType:
    family = name.partition(".")[0]
    known = reviewed["families"].get(family, {})
    gpus = _gpus(entry["gpus"], known.get("gpu", ""))
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
        efa_generation=known.get("efa") if entry["efa"] else None,
        ip_every=known.get("ip_every", 1),
        instance_store=(disks, size),
        nvlink=known.get("nvlink") if gpus.count > 1 else None,
        sockets=known.get("sockets") if gpus.count > 1 else None,
        purchases=_purchases(entry["purchases"]),
        placement=entry["placement"],
        auto_recovery=entry["recovery"],
        regions=frozenset(entry["regions"]),
        busbw=tuple(Busbw(*row) for row in reviewed["busbw"].get(name, ())),
    )


def _gpus(found: list[dict[str, Any]], kind: str) -> Gpus:
    return Gpus(found[0]["count"], kind, found[0]["name"], found[0]["memory_mb"]) if found else Gpus()


def _cards(runs: list[list[Any]]) -> tuple[Card, ...]:
    shapes = [shape for count, *shape in runs for _ in range(count)]
    return tuple(Card(index, interfaces, efa, gbps) for index, (interfaces, gbps, efa) in enumerate(shapes))


def _purchases(usages: list[str]) -> frozenset[str]:
    """A reservation is on-demand capacity that somebody holds."""
    return frozenset(usages) | ({"reservation"} if "on-demand" in usages else frozenset())
