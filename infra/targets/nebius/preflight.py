"""Check in a project whether a spec can be built there: platforms, presets, filesystems, and capacity on the fabric."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from cluster import names
from cluster.spec import ClusterSpec, Issue
from cluster.spec.issue import error, warning
from infra.targets.nebius.client import Cloud, Message
from infra.targets.nebius.kinds import IMAGE, KINDS
from infra.targets.nebius.plan import plan_nebius
from infra.targets.nebius.spec import NebiusGroup, require_section
from infra.targets.rented.section import machine_of

_PLATFORMS = ("nebius.compute.v1.PlatformService", "nebius.compute.v1.ListPlatformsRequest")
_ADVICE = ("nebius.capacity.v1.ResourceAdviceService", "nebius.capacity.v1.ListResourceAdviceRequest")
_PROJECTS = ("nebius.iam.v2.ProjectService", "Get", "nebius.iam.v2.GetProjectRequest")
_FRESH = "DATA_STATE_FRESH"
_MAX_LISTED = 8
Fabric = tuple[str, str, str, bool]
"""Platform, preset, fabric, and whether it is preemptible."""


@dataclass(frozen=True)
class Preset:
    """What a preset of a platform has."""

    gpus: int
    can_cluster: bool
    """Whether it can be in a GPU cluster."""


@dataclass(frozen=True)
class Account:
    """What a project offers, as far as a spec asks for it."""

    platforms: Mapping[str, Mapping[str, Preset]]
    missing_filesystems: frozenset[str]
    has_image: bool
    capacity: Mapping[Fabric, int]
    """Instances that can be created now; what Nebius gives no fresh number for is not in it."""
    existing: frozenset[str]
    """Names of the instances of the project."""


def read_account(cloud: Cloud, spec: ClusterSpec) -> Account:
    """Return what the project of a spec offers."""
    project = require_section(spec).project
    tenant = cloud.call(*_PROJECTS, {"id": project})["metadata"]["parentId"]
    platforms = {p["metadata"]["name"]: _read_presets(p) for p in cloud.list_all(*_PLATFORMS, project)}
    ids = [storage.id for storage in spec.storage.values() if storage.kind == "existing" and storage.id]
    missing = frozenset(id_ for id_ in ids if cloud.get(KINDS["filesystem"], id_) is None)
    capacity = {key: units for advice in cloud.list_all(*_ADVICE, tenant) for key, units in _read_advice(advice)}
    existing = frozenset(str(entry["metadata"].get("name")) for entry in cloud.list(KINDS["instance"], project))
    has_image = cloud.get(IMAGE, require_section(spec).image) is not None
    return Account(platforms, missing, has_image, capacity, existing)


def judge_account(spec: ClusterSpec, account: Account) -> Iterator[Issue]:
    """Yield what stops a spec in a project, and warnings about capacity. Pure."""
    section = require_section(spec)
    nodes = plan_nebius(spec).nodes
    for role, group in dict.fromkeys((node.role, node.group) for node in nodes):
        machine = machine_of(section, role, group)
        where = f"nebius.groups.{group}" if group else f"nebius.{role}"
        presets = account.platforms.get(machine.platform)
        if presets is None:
            yield _refuse(f"{where}.platform", machine.platform, "a platform of the project", account.platforms)
        elif machine.preset not in presets:
            yield _refuse(f"{where}.preset", machine.preset, f"a preset of '{machine.platform}'", presets)
        elif isinstance(machine, NebiusGroup) and machine.fabric and not presets[machine.preset].can_cluster:
            message = f"'{machine.preset}' of '{machine.platform}' cannot be in a GPU cluster"
            able = ", ".join(name for name, preset in presets.items() if preset.can_cluster) or "none"
            yield error("nebius_fabric", f"{where}.preset", message, f"choose a preset that can: {able}")
    yield from _judge_capacity(spec, account)
    if not account.has_image:
        message = f"'{section.image}' does not exist, or the account may not see it"
        fix = "correct the id; `nebius compute image list` shows them"
        yield error("nebius_image", "nebius.image", message, fix)
    for name, storage in spec.storage.items():
        if storage.id in account.missing_filesystems:
            message = f"'{storage.id}' does not exist, or the account may not see it"
            yield error(
                "nebius_filesystem",
                f"storage.{name}.id",
                message,
                "correct the id; `nebius compute filesystem list` shows them",
            )


def _judge_capacity(spec: ClusterSpec, account: Account) -> Iterator[Issue]:
    for name, group in require_section(spec).groups.items():
        planned = [node.name for node in plan_nebius(spec).nodes if node.group == name]
        missing = [node for node in planned if names.container(spec.name, node) not in account.existing]
        available = account.capacity.get((group.platform, group.preset, group.fabric or "", group.preemptible))
        if group.fabric and available is not None and available < len(missing):
            message = f"'{group.fabric}' has room for {available} more of {group.name}; needed: {len(missing)}"
            fix = "request a higher quota, choose another fabric, or run it later: `up` keeps what it could create"
            yield warning("nebius_capacity", f"nebius.groups.{name}.fabric", message, fix)


def _refuse(where: str, value: str, what: str, allowed: Mapping[str, object]) -> Issue:
    near = get_close_matches(value, allowed, n=1)
    listed = ", ".join(sorted(allowed)[:_MAX_LISTED]) + (", ..." if len(allowed) > _MAX_LISTED else "")
    fix = f"write `{where.rpartition('.')[2]}: {near[0]}`" if near else "choose one of those"
    return error("nebius_machine", where, f"'{value}' is not {what}; allowed: {listed or 'none'}", fix)


def _read_presets(platform: Message) -> dict[str, Preset]:
    return {
        preset["name"]: Preset(
            int(preset.get("resources", {}).get("gpuCount", 0)), bool(preset.get("allowGpuClustering"))
        )
        for preset in platform.get("spec", {}).get("presets", [])
    }


def _read_advice(advice: Message) -> Iterator[tuple[Fabric, int]]:
    spec, status = advice.get("spec", {}), advice.get("status", {})
    machine = spec.get("computeInstance", {})
    for key, preemptible in (("onDemand", False), ("preemptible", True)):
        availability = status.get(key, {})
        if availability.get("dataState") == _FRESH:
            fabric = (machine.get("platform", ""), machine.get("preset", {}).get("name", ""), spec.get("fabric", ""))
            yield (*fabric, preemptible), int(availability.get("available", 0))
