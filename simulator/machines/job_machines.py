"""The machines of one job that a user names by stack, instance type, profile, or a combination of them."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.spec import ClusterSpec, NodeGroup, Purchase
from infra.targets.registry import target_of
from simulator.hardware.rates import Rates
from simulator.hardware.system import System
from simulator.machines import stacks
from simulator.machines.profile import CALIBRATE, Profile
from simulator.machines.sources import InstanceMachines, ProfileMachines
from trainer.config.errors import ConfigError, ConfigProblem


@dataclass(frozen=True, kw_only=True)
class MachineRequest:
    """The machines as the user named them; empty and 0 are options that were not given."""

    stack: str = ""
    group: str = ""
    instance: str = ""
    profile: Profile | None = None
    nodes: int = 0
    ranks: int = 0


@dataclass(frozen=True, kw_only=True)
class JobMachines:
    """The machines of a job, with the rates to predict with and what the stack says about them."""

    system: System
    rates: Rates
    per_node: int
    """Ranks on each node."""
    sheet: System
    """The machines according to their data sheets; the same as `system` if they are not in the catalog."""
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
    def description(self) -> str:
        ranks = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        if self.of_catalog:
            return f"{self.nodes} x {self.sheet.name}, {ranks}"
        return f"{ranks} of {self.nodes} nodes" if self.nodes > 1 else f"{ranks} of one node"


def find_job_machines(request: MachineRequest) -> JobMachines:
    """Return the requested machines; raise ConfigError if they do not exist or the profile is of others."""
    if request.stack:
        return _of_stack(request)
    if request.profile and not request.instance:
        return _of_profile(request, request.profile)
    return _of_instance(request, InstanceMachines(request.instance, request.profile), default_nodes=1)


def _of_stack(request: MachineRequest) -> JobMachines:
    spec = stacks.any_spec_of(stacks.find(request.stack))
    name = stacks.group_of(spec, request.group or spec.slurm.default_group or next(iter(spec.groups)))
    group = spec.groups[name]
    if not target_of(spec).capabilities.rents_machines:
        return _of_own_machines(request, spec, group)
    region = target_of(spec).region(spec)
    machines = InstanceMachines(group.instance_type or "", request.profile, group.fabric, region)
    return _of_instance(request, machines, _node_count(group), spec, name)


def _of_own_machines(request: MachineRequest, spec: ClusterSpec, group: NodeGroup) -> JobMachines:
    """Return machines that are not in the catalog: only a profile says how fast they are."""
    if request.profile is None:
        message = f"{request.stack!r} has target {spec.target}, whose machines are not in the catalog"
        fix = f"make submit STACK={request.stack} JOB=slurm/jobs/calibrate.sbatch writes a profile"
        raise ConfigError([ConfigProblem("stack", f"{message}; allowed: with --profile", fix)])
    device = request.profile.machine["device"]
    if "real" not in target_of(spec).capabilities.gpus and device != "cpu":
        allowed = f"'cpu', the device of stack {request.stack}'s nodes"
        message = f"{device!r} in {request.profile.path}; allowed: {allowed}"
        raise ConfigError([ConfigProblem("profile.machine.device", message, f"calibrate these nodes: {CALIBRATE}")])
    return _of_profile(request, request.profile, default_nodes=_node_count(group))


def _of_profile(request: MachineRequest, profile: Profile, default_nodes: int = 0) -> JobMachines:
    """Return the measured number of nodes or ranks that was requested; by default the largest."""
    machines = ProfileMachines(profile)
    nodes = request.nodes or default_nodes
    if request.ranks:
        matches = [pair for pair in machines.measured if pair[0] * pair[1] == request.ranks][:1]
    else:
        matches = [pair for pair in machines.measured if nodes in (0, pair[0])][-1:]
    if not matches:
        option, value = ("--ranks", request.ranks) if request.ranks else ("--nodes", nodes)
        allowed = ", ".join(f"{count} x {per_node}" for count, per_node in machines.measured)
        message = f"{value}, not measured by {profile.path}; allowed: {allowed} (nodes x ranks)"
        fix = f"use one of them, or calibrate with that number: {CALIBRATE}"
        raise ConfigError([ConfigProblem(option, message, fix)])
    count, per_node = matches[0]
    rated = machines.rated(count, per_node)
    return JobMachines(
        system=rated.system,
        rates=rated.rates,
        per_node=per_node,
        sheet=rated.system,
        profile=profile,
        stack=request.stack,
    )


def _of_instance(
    request: MachineRequest,
    machines: InstanceMachines,
    default_nodes: int,
    spec: ClusterSpec | None = None,
    group: str = "",
) -> JobMachines:
    nodes, per_node = request.nodes or default_nodes, machines.gpus_per_node
    if ranks := request.ranks:
        if problems := machines.problems(ranks) or machines.limit_problems(ranks, "--ranks", "use fewer"):
            raise ConfigError(problems)
        nodes, per_node = machines.nodes(ranks), machines.per_node(ranks)
    rated = machines.rated(nodes, per_node)
    return JobMachines(
        system=rated.system,
        rates=rated.rates,
        per_node=per_node,
        sheet=machines.sheet(nodes),
        stack=request.stack,
        spec=spec,
        group=group,
        purchase=spec.groups[group].capacity.kind if spec else "on-demand",
        profile=request.profile,
    )


def _node_count(group: NodeGroup) -> int:
    return group.count or group.max or 1
