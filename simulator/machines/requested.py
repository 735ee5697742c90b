"""The machines that a run is asked about: a stack's, those of an instance type, or as `calibrate` measured them."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.spec import ClusterSpec, NodeGroup, Purchase
from infra.targets.registry import target_of
from simulator.hardware.rates import Rates, load_fitted_rates
from simulator.hardware.system import System
from simulator.machines import stacks
from simulator.machines.instances import system
from simulator.machines.profile import CALIBRATE, Profile
from simulator.machines.profile_catalog import joined
from simulator.machines.profile_fit import RatedSystem
from simulator.machines.stack_names import MAX_NODES as MOST_NODES
from trainer.config.errors import ConfigError, ConfigProblem


@dataclass(frozen=True, kw_only=True)
class Asked:
    """In words; empty and 0 are what nobody said."""

    stack: str = ""
    group: str = ""
    instance: str = ""
    profile: Profile | None = None
    nodes: int = 0
    ranks: int = 0


@dataclass(frozen=True, kw_only=True)
class On:
    system: System
    rates: Rates
    per_node: int
    """Ranks of one node."""
    sheet: System
    """By the catalog, for what is relative to data sheets; the same as `system` where there is none."""
    stack: str = ""
    spec: ClusterSpec | None = None
    group: str = ""
    purchase: Purchase = "on-demand"
    profile: Profile | None = None

    @property
    def nodes(self) -> int:
        return self.system.nodes

    @property
    def ranks(self) -> int:
        return self.nodes * self.per_node

    @property
    def of_catalog(self) -> bool:
        return self.sheet.gpu.products is None

    @property
    def is_gpu(self) -> bool:
        return self.system.gpu.launches_ahead

    @property
    def told(self) -> str:
        ranks = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        if self.of_catalog:
            return f"{self.nodes} x {self.sheet.name}, {ranks}"
        return f"{ranks} of {self.nodes} nodes" if self.nodes > 1 else f"{ranks} of one node"


def on(asked: Asked) -> On:
    """ConfigError where there are no such machines, or the profile is of others."""
    if asked.stack:
        return _of_stack(asked)
    if asked.profile and not asked.instance:
        return _measured(asked, asked.profile)
    nodes, per_node = _counted(asked, asked.instance, usual=1)
    return _joined(asked, system(asked.instance, nodes), per_node)


def _of_stack(asked: Asked) -> On:
    spec = stacks.any_spec_of(stacks.find(asked.stack))
    name = stacks.group_of(spec, asked.group or spec.slurm.default_group or next(iter(spec.groups)))
    group = spec.groups[name]
    if not target_of(spec).capabilities.rents_machines:
        return _own(asked, spec, group)
    nodes, per_node = _counted(asked, group.instance_type or "", usual=_count(group))
    machines = system(group.instance_type or "", nodes, group.fabric, target_of(spec).region(spec))
    return _joined(asked, machines, per_node, spec, name)


def _own(asked: Asked, spec: ClusterSpec, group: NodeGroup) -> On:
    """Machines that no catalog knows: only what was measured on them says how fast they are."""
    if asked.profile is None:
        message = f"{asked.stack!r} has target {spec.target}, whose machines no catalog has; allowed: with --profile"
        fix = f"make submit STACK={asked.stack} JOB=slurm/jobs/calibrate.sbatch writes one"
        raise ConfigError([ConfigProblem("stack", message, fix)])
    device = asked.profile.machine["device"]
    if "real" not in target_of(spec).capabilities.gpus and device != "cpu":
        message = f"{device!r} in {asked.profile.path}; allowed: 'cpu', as the nodes of stack {asked.stack} have"
        raise ConfigError([ConfigProblem("profile.machine.device", message, f"calibrate there: {CALIBRATE}")])
    return _measured(asked, asked.profile, nodes=_count(group))


def _measured(asked: Asked, profile: Profile, nodes: int = 0) -> On:
    """So many nodes or ranks as were measured; the most of them where nobody says."""
    pairs = sorted((one["nodes"], one["per_node"]) for one in profile.worlds)
    if asked.ranks:
        fitting = [pair for pair in pairs if pair[0] * pair[1] == asked.ranks][:1]
    else:
        wanted = asked.nodes or nodes
        fitting = [pair for pair in pairs if wanted in (0, pair[0])][-1:]
    if not fitting:
        what, of = ("--ranks", asked.ranks) if asked.ranks else ("--nodes", asked.nodes or nodes)
        allowed = ", ".join(f"{count} x {each}" for count, each in pairs)
        message = f"{of}, not measured by {profile.path}; allowed: {allowed} (nodes x ranks)"
        raise ConfigError(
            [ConfigProblem(what, message, f"ask for one of them, or calibrate with as many: {CALIBRATE}")]
        )
    count, each = fitting[0]
    found = profile.of(count, each)
    return On(
        system=found.system, rates=found.rates, per_node=each, sheet=found.system, profile=profile, stack=asked.stack
    )


def _joined(asked: Asked, sheet: System, per_node: int, spec: ClusterSpec | None = None, group: str = "") -> On:
    found = joined(asked.profile, sheet, per_node) if asked.profile else RatedSystem(sheet, load_fitted_rates())
    purchase = spec.groups[group].capacity.kind if spec else "on-demand"
    return On(
        system=found.system,
        rates=found.rates,
        per_node=per_node,
        sheet=sheet,
        stack=asked.stack,
        spec=spec,
        group=group,
        purchase=purchase,
        profile=asked.profile,
    )


def _counted(asked: Asked, instance: str, usual: int) -> tuple[int, int]:
    """Nodes, and ranks of each."""
    each = system(instance, 1).gpus_per_node
    if not asked.ranks:
        return asked.nodes or usual, each
    if asked.ranks > each and asked.ranks % each:
        below = asked.ranks // each * each
        message = f"{asked.ranks}; allowed: up to {each}, or a multiple of the {each} GPUs of a {instance}"
        raise ConfigError([ConfigProblem("--ranks", message, f"use {below} or {below + each}")])
    if asked.ranks > each * MOST_NODES:
        message = f"{asked.ranks}; allowed: up to {each * MOST_NODES}, {MOST_NODES} nodes of a {instance}"
        raise ConfigError([ConfigProblem("--ranks", message, "use fewer")])
    return -(-asked.ranks // each), min(asked.ranks, each)


def _count(group: NodeGroup) -> int:
    return group.count or group.max or 1
