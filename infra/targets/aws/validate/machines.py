"""Rules about instance types: in the catalog, offered, as described, large enough, of the same architecture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cluster.catalog.instances import (
    InstanceType,
    UnknownInstanceType,
    UnverifiedInstanceType,
    instance,
    is_reviewed,
    read_caveat,
)
from cluster.spec import ClusterSpec, Gpus
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.spec import aws_section
from infra.targets.aws.validate.types import (
    CONTROLLER,
    LOGIN,
    count_max_nodes,
    list_catalog_types,
    list_regions,
    list_type_names,
    list_typed_groups,
    machine_of,
    type_property,
)

# Memory for slurmctld, slurmdbd and its database on an otherwise empty Linux.
MIN_CONTROLLER_MB = 4096
BURSTABLE = ("t3", "t4g")


@dataclass(frozen=True)
class ControllerSize:
    """What a controller should have for up to a number of nodes."""

    nodes: int
    vcpus: int
    memory_gib: int
    example: str


CONTROLLER_SIZES = (
    ControllerSize(64, 2, 8, "m7i.large"),
    ControllerSize(512, 4, 16, "m7i.xlarge"),
    ControllerSize(10_000, 8, 32, "m7i.2xlarge"),
)


def check_type_present(spec: ClusterSpec) -> Iterator[Issue]:
    """Report groups without an instance type."""
    for name, group in spec.groups.items():
        if group.instance_type is None:
            message = "required with target aws, but missing; expected an EC2 instance type"
            where = type_property(name)
            yield error("no_instance_type", where, message, "add `instance_type: g6.8xlarge`")


def check_type_in_catalog(spec: ClusterSpec) -> Iterator[Issue]:
    """Report instance types that the catalog does not have, or has as unsupported."""
    for where, name in list_type_names(spec).items():
        try:
            instance(name)
        except UnknownInstanceType as bad:
            message = f"'{name}' is not in the catalog; nearest: {', '.join(bad.nearest) or 'none'}"
            key = "instance_type: " if where.endswith(".instance_type") else ""
            fix = f"write `{key}{bad.nearest[0]}`" if bad.nearest else "write for example `p5.48xlarge`"
            fix += "; with AWS credentials, other types are looked up in the account"
            yield error("unknown_instance_type", where, message, fix)
        except UnverifiedInstanceType as bad:
            message = f"'{name}' is not supported: {bad.why}"
            fix = "choose another type, for example `instance_type: trn2.48xlarge`"
            yield error("unverified_instance_type", where, message, fix)


def check_type_reviewed(spec: ClusterSpec) -> Iterator[Issue]:
    """Warn about types outside the catalog, whose hardware AWS describes only in part."""
    for where, machine in list_catalog_types(spec).items():
        if not is_reviewed(machine.name):
            caveat = read_caveat(machine.family) or "sockets, NVLink and expected bandwidth are unknown"
            message = f"'{machine.name}' is not in the catalog: {caveat}"
            fix = "run the fabric job before long training runs; docs/add-an-instance-type.md adds a type"
            if read_caveat(machine.family):
                fix = f"name an Ubuntu image that supports it with `aws.ami`, and {fix}"
            yield warning("type_not_reviewed", where, message, fix)


def check_type_offered(spec: ClusterSpec) -> Iterator[Issue]:
    """Report instance types that the region does not offer."""
    section = aws_section(spec)
    if section is None or section.region not in list_regions():
        return
    for where, machine in list_catalog_types(spec).items():
        if section.region not in machine.regions:
            places = ", ".join(sorted(machine.regions))
            message = f"'{machine.name}' is not offered in {section.region}; offered in: {places}"
            fix = "choose another type, or another region (a cluster cannot move later)"
            yield error("not_offered", where, message, fix)


def check_gpus(spec: ClusterSpec) -> Iterator[Issue]:
    """Report GPUs that differ from those the catalog has for the type."""
    for name, (group, machine) in list_typed_groups(spec).items():
        where, has = f"groups.{name}.gpus", machine.gpus
        if group.gpus.count not in (0, has.count):
            message = f"{group.gpus.count} is not the number of GPUs of {machine.name}; allowed: {has.count}"
            yield error("gpu_count", f"{where}.count", message, f"write `count: {has.count}`, or remove gpus")
        if has.count and group.gpus.type not in (Gpus().type, has.type):
            message = f"'{group.gpus.type}' is not the GPU of {machine.name}; allowed: {has.type}"
            yield error("gpu_type", f"{where}.type", message, f"write `type: {has.type}`, or remove gpus")


def check_trainium(spec: ClusterSpec) -> Iterator[Issue]:
    """Warn about Trainium types, for which no driver is installed."""
    for name, (_, machine) in list_typed_groups(spec).items():
        if machine.neuron:
            message = (
                f"{machine.name} has {machine.neuron} Neuron chips and no GPU: no driver for them is installed, and "
                "the trainer does not run on them"
            )
            where = type_property(name)
            yield warning("trainium", where, message, "choose a GPU type, or install the Neuron SDK yourself")


def check_idle_gpus(spec: ClusterSpec) -> Iterator[Issue]:
    """Warn about GPUs on the controller or login node, where no job runs."""
    for where in (CONTROLLER, LOGIN):
        machine = list_catalog_types(spec).get(where)
        if machine and machine.gpus.count:
            message = f"the GPUs of {machine.name} cannot be used: no job runs on the {machine_of(where)} node"
            yield warning("idle_gpus", where, message, "write for example `instance_type: m7i.xlarge`")


def check_controller_size(spec: ClusterSpec) -> Iterator[Issue]:
    """Report a controller that is too small for the number of nodes."""
    machine, where = list_catalog_types(spec).get(CONTROLLER), CONTROLLER
    if machine is None:
        return
    nodes = sum(count_max_nodes(group) for group in spec.groups.values())
    needed = next(size for size in CONTROLLER_SIZES if nodes <= size.nodes)
    if machine.memory_mb < MIN_CONTROLLER_MB:
        message = f"{machine.name} has {machine.memory_mb} MiB; slurmctld and its database need {MIN_CONTROLLER_MB} MiB"
        yield error("controller_memory", where, message, f"write `instance_type: {needed.example}`")
    elif machine.vcpus < needed.vcpus or machine.memory_mb < needed.memory_gib * 1024:
        size = f"{machine.vcpus} vCPUs and {machine.memory_mb // 1024} GiB"
        message = f"{machine.name} has {size}; {nodes} nodes need {needed.vcpus} and {needed.memory_gib} GiB or more"
        yield warning("controller_small", where, message, f"write `instance_type: {needed.example}`")


def check_burstable(spec: ClusterSpec) -> Iterator[Issue]:
    """Warn about a controller that runs on CPU credits."""
    machine = list_catalog_types(spec).get(CONTROLLER)
    if machine and machine.family in BURSTABLE:
        message = f"{machine.name} runs on CPU credits: once they are used up, the scheduler slows down or costs more"
        yield warning("burstable", CONTROLLER, message, "write for example `instance_type: m7i.large`")


def check_architecture(spec: ClusterSpec) -> Iterator[Issue]:
    """Report mixed architectures: one environment on /shared serves every machine."""
    types = list_catalog_types(spec)
    expected = _find_main_architecture(types)
    for where, machine in types.items():
        if machine.architecture != expected:
            message = (
                f"{machine.name} is {machine.architecture}, the other machines are {expected}; allowed: one "
                "architecture"
            )
            fix = f"choose a type that is {expected}{_suggest_type(machine, expected)}"
            yield error("architecture", where, message, fix)


def _find_main_architecture(types: dict[str, InstanceType]) -> str:
    """Return the architecture of most groups, which controller and login must have too."""
    kinds = [t.architecture for where, t in types.items() if where.startswith("groups.")] or ["x86_64"]
    return max(sorted(set(kinds), reverse=True), key=kinds.count)


def _suggest_type(machine: InstanceType, architecture: str) -> str:
    other = {"arm64": "m7g.xlarge", "x86_64": "m7i.xlarge"}[architecture]
    return "" if machine.gpus.count else f", for example `instance_type: {other}`"
