"""Where the machines of a prediction come from: an instance type of the catalog, or a profile that `calibrate` wrote.

`emulate` also runs in environments without pydantic, so this module must not import `cluster.spec`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml

from simulator.hardware.rates import Rates, load_fitted_rates
from simulator.hardware.system import System
from simulator.machines import stack_names
from simulator.machines.instances import system, with_gpus
from simulator.machines.profile import CALIBRATE, Profile
from simulator.machines.profile_catalog import apply_profile, check_profile
from simulator.machines.profile_fit import RatedSystem
from simulator.machines.stack_names import MAX_NODES
from trainer.config.errors import ConfigError, ConfigProblem


class MachineSource(Protocol):
    """Machines of one kind, in the number that a job's ranks need."""

    @property
    def name(self) -> str:
        """For tables and pictures."""

    def per_node(self, ranks: int) -> int: ...

    def system(self, ranks: int) -> System: ...

    def rates(self, ranks: int) -> Rates: ...

    def problems(self, ranks: int, where: str = "--ranks") -> list[ConfigProblem]:
        """Return why these machines cannot have this number of ranks; an empty list if they can."""


@dataclass(frozen=True)
class InstanceMachines:
    """Machines of an instance type; with a profile, their GPU is as measured."""

    instance: str
    profile: Profile | None = None
    fabric: str = "efa"
    region: str = "us-east-1"
    _cache: dict[tuple[int, int], RatedSystem] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        return f"{self.instance}, {self.profile.path.name}" if self.profile else self.instance

    @property
    def gpus_per_node(self) -> int:
        return system(self.instance, 1).gpus_per_node

    def nodes(self, ranks: int) -> int:
        return -(-ranks // self.gpus_per_node)

    def per_node(self, ranks: int) -> int:
        return min(ranks, self.gpus_per_node)

    def sheet(self, nodes: int) -> System:
        """Return the machines by their data sheets, whatever the profile says."""
        return system(self.instance, nodes, self.fabric, self.region)

    def rated(self, nodes: int, per_node: int) -> RatedSystem:
        """Return this number of nodes with `per_node` ranks on each, and the rates to predict with."""
        key = nodes, per_node
        if key not in self._cache:
            sheet = self.sheet(nodes)
            self._cache[key] = (
                apply_profile(self.profile, sheet, per_node)
                if self.profile
                else RatedSystem(sheet, load_fitted_rates())
            )
        return self._cache[key]

    def system(self, ranks: int) -> System:
        return self.rated(self.nodes(ranks), self.per_node(ranks)).system

    def rates(self, ranks: int) -> Rates:
        return self.rated(self.nodes(ranks), self.per_node(ranks)).rates

    def problems(self, ranks: int, where: str = "--ranks") -> list[ConfigProblem]:
        gpus = self.per_node(ranks)
        if ranks % gpus == 0:
            return []
        below = ranks // gpus * gpus
        allowed = f"allowed: up to {gpus}, or a multiple of the {gpus} GPUs of a {self.instance}"
        return [ConfigProblem(where, f"{ranks}; {allowed}", f"use {below} or {below + gpus}")]

    def limit_problems(self, ranks: int, where: str, fix: str) -> list[ConfigProblem]:
        """Return a problem if the ranks need more nodes than a node group may have."""
        most = self.per_node(ranks) * MAX_NODES
        if ranks <= most:
            return []
        message = f"{ranks}; allowed: up to {most}, {MAX_NODES} nodes of a {self.instance}"
        return [ConfigProblem(where, message, fix)]


@dataclass(frozen=True)
class ProfileMachines:
    """Machines as a profile describes them: only the numbers of nodes and ranks that were measured."""

    profile: Profile
    _cache: dict[tuple[int, int], RatedSystem] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        return f"{self.profile.machine['device']} as in {self.profile.path.name}"

    @property
    def measured(self) -> list[tuple[int, int]]:
        """The measured pairs of nodes and ranks per node, fewest nodes first."""
        return sorted((world["nodes"], world["per_node"]) for world in self.profile.worlds)

    def rated(self, nodes: int, per_node: int) -> RatedSystem:
        key = nodes, per_node
        if key not in self._cache:
            self._cache[key] = self.profile.of(nodes, per_node)
        return self._cache[key]

    def per_node(self, ranks: int) -> int:
        return self._by_ranks()[ranks][1]

    def system(self, ranks: int) -> System:
        return self.rated(*self._by_ranks()[ranks]).system

    def rates(self, ranks: int) -> Rates:
        return self.rated(*self._by_ranks()[ranks]).rates

    def problems(self, ranks: int, where: str = "--ranks") -> list[ConfigProblem]:
        by_ranks = self._by_ranks()
        if ranks in by_ranks:
            return []
        message = f"{ranks}, not measured by {self.profile.path}; allowed: {', '.join(map(str, by_ranks))}"
        return [ConfigProblem(where, message, f"calibrate with that number: {CALIBRATE}")]

    def _by_ranks(self) -> dict[int, tuple[int, int]]:
        """Return nodes and ranks per node by total ranks; where several have the same total, the fewest nodes."""
        pairs = {nodes * per_node: (nodes, per_node) for nodes, per_node in reversed(self.measured)}
        return dict(sorted(pairs.items()))


def find_machines(name: str | None, profile: Profile | None, default: str) -> MachineSource:
    """Return the machines that `--system` (an instance type or a stack) and `--profile` name together."""
    return ProfileMachines(profile) if profile and not name else named_machines(name or default, profile)


def named_machines(name: str, profile: Profile | None = None) -> InstanceMachines:
    """Return machines by instance type or by stack: of a stack, its first node group with GPUs of the catalog."""
    file = stack_names.file_of(name)
    machines = InstanceMachines(_instance_of_stack(file, name) if file else name, profile)
    _check_instance(machines.instance)
    if profile:
        check_profile(profile, system(machines.instance, 1))
    return machines


def _check_instance(instance: str) -> None:
    """Raise ConfigError for an unknown type; the fix also names stacks with a similar name."""
    try:
        system(instance, 1)
    except ConfigError as error:
        if not (similar := stack_names.similar(instance)):
            raise
        stacks = f"or a stack: {' or '.join(similar)}"
        raise ConfigError(
            [ConfigProblem(problem.where, problem.message, f"{problem.fix}, {stacks}") for problem in error.problems]
        ) from None


def _instance_of_stack(file: Path, name: str) -> str:
    tree: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    groups = tree["config"]["muster:cluster"].get("groups", {})
    types = [str(group.get("instance_type", "")) for group in groups.values()]
    instance = next((kind for kind in types if kind in with_gpus()), None)
    if instance is None:
        message = f"{name!r} is a stack without GPUs of the catalog; allowed: {', '.join(with_gpus())}"
        raise ConfigError([ConfigProblem("--system", message, "choose one of them, or use --profile alone")])
    return instance
