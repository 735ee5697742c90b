"""The machines that a job is clocked on: so many as its ranks need, by the catalog or as `calibrate` measured them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from simulator.hardware.rates import Rates, fitted
from simulator.hardware.system import System
from simulator.machines import stack_names
from simulator.machines.instances import system, with_gpus
from simulator.machines.profile import CALIBRATE, Profile
from simulator.machines.profile_catalog import check, joined
from simulator.machines.profile_fit import Calibrated
from trainer.config.errors import ConfigError, ConfigProblem


class Clocked(Protocol):
    @property
    def name(self) -> str:
        """For tables and pictures."""

    def per_node(self, ranks: int) -> int: ...

    def system(self, ranks: int) -> System: ...

    def rates(self, ranks: int) -> Rates: ...

    def problems(self, ranks: int, where: str = "--ranks") -> list[ConfigProblem]:
        """Why there is no such number of ranks, or nothing."""


@dataclass(frozen=True)
class Machines:
    """Of an instance type; with a profile its GPU is as measured."""

    instance: str
    profile: Profile | None = None
    _kept: dict[int, Calibrated] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def named(cls, word: str, profile: Profile | None = None) -> Machines:
        """By instance type, or by a stack: then those of its first group with GPUs that are known."""
        file = stack_names.file_of(word)
        found = cls(_of_stack(file, word) if file else word, profile)
        _known(found.instance)
        if profile:
            check(profile, system(found.instance, 1))
        return found

    @property
    def name(self) -> str:
        return f"{self.instance}, {self.profile.path.name}" if self.profile else self.instance

    def per_node(self, ranks: int) -> int:
        return min(ranks, system(self.instance, 1).gpus_per_node)

    def system(self, ranks: int) -> System:
        return self._of(ranks).system

    def rates(self, ranks: int) -> Rates:
        return self._of(ranks).rates

    def problems(self, ranks: int, where: str = "--ranks") -> list[ConfigProblem]:
        each = self.per_node(ranks)
        if ranks % each == 0:
            return []
        below = ranks // each * each
        allowed = f"allowed: up to {each}, or a multiple of the {each} GPUs of a {self.instance}"
        return [ConfigProblem(where, f"{ranks}; {allowed}", f"use {below} or {below + each}")]

    def _of(self, ranks: int) -> Calibrated:
        if ranks not in self._kept:
            catalog = system(self.instance, -(-ranks // system(self.instance, 1).gpus_per_node))
            measured = joined(self.profile, catalog, self.per_node(ranks)) if self.profile else None
            self._kept[ranks] = measured or Calibrated(catalog, fitted())
        return self._kept[ranks]


@dataclass(frozen=True)
class Measured:
    """As in a profile alone: numbers of ranks that were measured, and no others."""

    profile: Profile
    _kept: dict[int, Calibrated] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        return f"{self.profile.machine['device']} as in {self.profile.path.name}"

    def per_node(self, ranks: int) -> int:
        return self._worlds()[ranks][1]

    def system(self, ranks: int) -> System:
        return self._of(ranks).system

    def rates(self, ranks: int) -> Rates:
        return self._of(ranks).rates

    def problems(self, ranks: int, where: str = "--ranks") -> list[ConfigProblem]:
        if ranks in self._worlds():
            return []
        message = f"{ranks}, not measured by {self.profile.path}; allowed: {', '.join(map(str, self._worlds()))}"
        return [ConfigProblem(where, message, f"calibrate with as many: {CALIBRATE}")]

    def _of(self, ranks: int) -> Calibrated:
        if ranks not in self._kept:
            self._kept[ranks] = self.profile.of(*self._worlds()[ranks])
        return self._kept[ranks]

    def _worlds(self) -> dict[int, tuple[int, int]]:
        """Nodes and ranks of a node by the number of ranks; fewer nodes where several have it."""
        pairs = sorted(((one["nodes"], one["per_node"]) for one in self.profile.worlds), reverse=True)
        return dict(sorted((nodes * each, (nodes, each)) for nodes, each in pairs))


def clocked(word: str | None, profile: Profile | None, usual: str) -> Clocked:
    """What `--system` and `--profile` name together."""
    return Measured(profile) if profile and not word else Machines.named(word or usual, profile)


def _known(instance: str) -> None:
    try:
        system(instance, 1)
    except ConfigError as bad:
        if not stack_names.meant(instance):
            raise
        also = f"or a stack: {' or '.join(stack_names.meant(instance))}"
        raise ConfigError(
            [ConfigProblem(one.where, one.message, f"{one.fix}, {also}") for one in bad.problems]
        ) from None


def _of_stack(file: Path, word: str) -> str:
    tree: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    groups = tree["config"]["muster:cluster"].get("groups", {})
    types = [str(group.get("instance_type", "")) for group in groups.values()]
    found = next((one for one in types if one in with_gpus()), None)
    if found is None:
        message = f"{word!r} is a stack without GPUs that are known; allowed: {', '.join(with_gpus())}"
        raise ConfigError([ConfigProblem("--system", message, "choose one of them, or --profile alone")])
    return found
