"""The rules on specs for target nebius. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error
from infra.targets.nebius.plan import SUBNET_MAX_PREFIX
from infra.targets.nebius.spec import SECTION, Nebius, nebius_section
from infra.targets.rented import rules

# A fabric connects whole machines: Nebius allows GPU clusters only for presets with all GPUs of a machine.
FABRIC_GPUS = 8

_Rule = Callable[[ClusterSpec, Nebius], Iterator[Issue]]


def validate_nebius(spec: ClusterSpec) -> Iterator[Issue]:
    """Yield every issue of the section `nebius`, and of what other sections say about its machines."""
    section = nebius_section(spec)
    if section is None:
        fix = "add `nebius:` with `project`, `ssh_from` and `groups`; docs/nebius.md has an example"
        yield error("no_nebius", "nebius", f"required for target {spec.target}, but missing", fix)
        return
    yield from rules.check_section(spec, SECTION, section, "{platform: PLATFORM, preset: PRESET}", SUBNET_MAX_PREFIX)
    for rule in RULES:
        yield from rule(spec, section)


def check_gpu_counts(spec: ClusterSpec, section: Nebius) -> Iterator[Issue]:
    """Require as many GPUs as the preset has: Slurm would schedule others."""
    for name, machine in section.groups.items():
        group = spec.groups.get(name)
        if group is not None and group.gpus.count != machine.gpus:
            message = f"{group.gpus.count}, but preset '{machine.preset}' of '{machine.platform}' has {machine.gpus}"
            fix = f"write `gpus: {{count: {machine.gpus}, kind: real}}`" if machine.gpus else "remove `gpus`"
            yield error("gpu_count", f"groups.{name}.gpus.count", message, f"{fix}, or choose another preset")


def check_fabrics(spec: ClusterSpec, section: Nebius) -> Iterator[Issue]:
    """Require a fabric for groups with InfiniBand, and a preset that can be on one."""
    for name, machine in section.groups.items():
        group = spec.groups.get(name)
        if group is None:
            continue
        where = f"nebius.groups.{name}.fabric"
        if group.fabric != "infiniband":
            if machine.fabric is not None:
                message = f"'{machine.fabric}' has no effect: the group's fabric is {group.fabric}"
                yield error("fabric_unused", where, message, f"write `fabric: infiniband` under `groups.{name}`")
            continue
        if machine.fabric is None:
            fix = "write the fabric in which your project has capacity, for example `fabric: fabric-3`"
            yield error("no_fabric", where, "required for fabric infiniband, but missing", fix)
        if machine.gpus < FABRIC_GPUS:
            message = f"'{machine.preset}' cannot be on an InfiniBand fabric; allowed: presets with {FABRIC_GPUS} GPUs"
            fix = "choose such a preset, or write `fabric: tcp`"
            yield error("fabric_preset", f"nebius.groups.{name}.preset", message, fix)


def check_storage(spec: ClusterSpec, _section: Nebius) -> Iterator[Issue]:
    """Require a size for filesystems that are created, and an id for those that exist."""
    for name, storage in spec.storage.items():
        where = f"storage.{name}"
        if storage.kind == "volume" and storage.size_gb is None:
            yield error("no_size", f"{where}.size_gb", "required, but missing", "write for example `size_gb: 1024`")
        if storage.kind == "existing" and storage.id is None:
            fix = "write the id of the shared filesystem, for example `id: computefilesystem-e00example`"
            yield error("no_filesystem_id", f"{where}.id", "required for kind existing, but missing", fix)


RULES: tuple[_Rule, ...] = (
    check_gpu_counts,
    check_fabrics,
    check_storage,
)
