"""Rules about instance types: known, offered in the region, as the spec describes them, large enough, of one kind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cluster.catalog.instances import InstanceType, UnknownInstanceType, UnverifiedInstanceType, instance
from cluster.spec import ClusterSpec, Gpus
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.spec import aws_section
from infra.targets.aws.validate.types import groups, known, most, named, regions

# slurmctld, slurmdbd and its database on an otherwise empty Linux.
LEAST_CONTROLLER_MB = 4096
BURSTABLE = ("t3", "t4g")


@dataclass(frozen=True)
class Load:
    """Up to so many nodes, a controller should have this much."""

    nodes: int
    vcpus: int
    memory_gib: int
    example: str


LOADS = (Load(64, 2, 8, "m7i.large"), Load(512, 4, 16, "m7i.xlarge"), Load(10_000, 8, 32, "m7i.2xlarge"))


def given(spec: ClusterSpec) -> Iterator[Issue]:
    for name, group in spec.groups.items():
        if group.instance_type is None:
            message = "required with target aws, but missing; expected an EC2 instance type"
            where = f"groups.{name}.instance_type"
            yield error("no_instance_type", where, message, "add `instance_type: g6.8xlarge`")


def in_catalog(spec: ClusterSpec) -> Iterator[Issue]:
    for where, name in named(spec).items():
        try:
            instance(name)
        except UnknownInstanceType as bad:
            message = f"'{name}' is not in the catalog; nearest: {', '.join(bad.nearest) or 'none'}"
            fix = f"write `instance_type: {bad.nearest[0]}`" if bad.nearest else "write for example `p5.48xlarge`"
            yield error("unknown_instance_type", f"{where}.instance_type", message, fix)
        except UnverifiedInstanceType as bad:
            message = f"'{name}' has no documented network layout: {bad.why}"
            fix = "choose another type, for example `instance_type: p6-b200.48xlarge`"
            yield error("unverified_instance_type", f"{where}.instance_type", message, fix)


def offered(spec: ClusterSpec) -> Iterator[Issue]:
    section = aws_section(spec)
    if section is None or section.region not in regions():
        return
    for where, found in known(spec).items():
        if section.region not in found.regions:
            places = ", ".join(sorted(found.regions))
            message = f"'{found.name}' is not offered in {section.region}; offered in: {places}"
            fix = "choose another type, or another region (a cluster cannot move later)"
            yield error("not_offered", f"{where}.instance_type", message, fix)


def gpus(spec: ClusterSpec) -> Iterator[Issue]:
    """What a machine has is in the catalog; writing it down is allowed, writing something else is not."""
    for name, (group, found) in groups(spec).items():
        where, has = f"groups.{name}.gpus", found.gpus
        if group.gpus.count not in (0, has.count):
            message = f"{group.gpus.count} is not the number of GPUs of {found.name}; allowed: {has.count}"
            yield error("gpu_count", f"{where}.count", message, f"write `count: {has.count}`, or remove gpus")
        if has.count and group.gpus.type not in (Gpus().type, has.type):
            message = f"'{group.gpus.type}' is not the GPU of {found.name}; allowed: {has.type}"
            yield error("gpu_type", f"{where}.type", message, f"write `type: {has.type}`, or remove gpus")


def trainium(spec: ClusterSpec) -> Iterator[Issue]:
    for name, (_, found) in groups(spec).items():
        if found.neuron:
            message = f"{found.name} has {found.neuron} Trainium chips and no GPU: no driver for them is installed"
            where = f"groups.{name}.instance_type"
            yield warning("trainium", where, message, "choose a GPU type, or install the Neuron SDK yourself")


def idle_gpus(spec: ClusterSpec) -> Iterator[Issue]:
    for role in ("controller", "login"):
        found = known(spec).get(role)
        if found and found.gpus.count:
            message = f"the GPUs of {found.name} cannot be used: no job runs on the {role} node"
            yield warning(
                "idle_gpus", f"{role}.instance_type", message, "write for example `instance_type: m7i.xlarge`"
            )


def controller_size(spec: ClusterSpec) -> Iterator[Issue]:
    found, where = known(spec).get("controller"), "controller.instance_type"
    if found is None:
        return
    nodes = sum(most(group) for group in spec.groups.values())
    needed = next(load for load in LOADS if nodes <= load.nodes)
    if found.memory_mb < LEAST_CONTROLLER_MB:
        message = f"{found.name} has {found.memory_mb} MiB; slurmctld and its database need {LEAST_CONTROLLER_MB} MiB"
        yield error("controller_memory", where, message, f"write `instance_type: {needed.example}`")
    elif found.vcpus < needed.vcpus or found.memory_mb < needed.memory_gib * 1024:
        has = f"{found.vcpus} vCPUs and {found.memory_mb // 1024} GiB"
        message = f"{found.name} has {has}; {nodes} nodes want {needed.vcpus} and {needed.memory_gib} GiB or more"
        yield warning("controller_small", where, message, f"write `instance_type: {needed.example}`")


def burstable(spec: ClusterSpec) -> Iterator[Issue]:
    found = known(spec).get("controller")
    if found and found.family in BURSTABLE:
        message = (
            f"{found.name} lives on CPU credits: a scheduler under load slows down or costs more when they are used"
        )
        yield warning("burstable", "controller.instance_type", message, "write for example `instance_type: m7i.large`")


def architecture(spec: ClusterSpec) -> Iterator[Issue]:
    """One environment on /shared serves every machine, so all of them run the same instructions."""
    types = known(spec)
    wanted = _majority(types)
    for where, found in types.items():
        if found.architecture != wanted:
            message = (
                f"{found.name} is {found.architecture}, the other machines are {wanted}; allowed: one architecture"
            )
            fix = f"choose a type that is {wanted}{_sibling(found, wanted)}"
            yield error("architecture", f"{where}.instance_type", message, fix)


def _majority(types: dict[str, InstanceType]) -> str:
    """The architecture of most groups: controller and login follow them."""
    kinds = [t.architecture for where, t in types.items() if where.startswith("groups.")] or ["x86_64"]
    return max(sorted(set(kinds), reverse=True), key=kinds.count)


def _sibling(found: InstanceType, wanted: str) -> str:
    other = {"arm64": "m7g.xlarge", "x86_64": "m7i.xlarge"}[wanted]
    return "" if found.gpus.count else f", for example `instance_type: {other}`"
