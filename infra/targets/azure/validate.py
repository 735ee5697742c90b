"""The rules on specs for target azure. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from cluster.user_ids import LAST_UID
from infra.plan import node_count
from infra.targets.azure.plan import NETWORK_MAX_PREFIX, list_machines
from infra.targets.azure.sizes import read_sizes
from infra.targets.azure.spec import ADMIN, ADMIN_UID, GALLERY, MARKETPLACE, SECTION, SLURM_IMAGE, Azure, azure_section
from infra.targets.rented import rules

# One placement group has at most that many machines, and InfiniBand connects only machines of one.
PLACEMENT_GROUP_MAX = 100
SCALE_SET_MAX = 1000
# Capacity of a filesystem in TiB by SKU: the smallest, which is also the step, and the largest without a request.
FILESYSTEM_TIB = {
    "AMLFS-Durable-Premium-40": (48, 768),
    "AMLFS-Durable-Premium-125": (16, 128),
    "AMLFS-Durable-Premium-250": (8, 128),
    "AMLFS-Durable-Premium-500": (4, 128),
}
GB_PER_TIB = 1024
_BARE_IMAGE = "microsoft-dsvm:ubuntu-hpc:"

_Rule = Callable[[ClusterSpec, Azure], Iterator[Issue]]


def validate_azure(spec: ClusterSpec) -> Iterator[Issue]:
    """Yield every issue of the section `azure`, and of what other sections say about its machines."""
    section = azure_section(spec)
    if section is None:
        fix = "add `azure:` with `subscription`, `region`, `ssh_from`, `image` and `groups`, as in docs/azure.md"
        yield error("no_azure", SECTION, f"required for target {spec.target}, but missing", fix)
        return
    yield from rules.check_section(spec, SECTION, section, "{size: SIZE}", NETWORK_MAX_PREFIX)
    for rule in RULES:
        yield from rule(spec, section)


def check_sizes(spec: ClusterSpec, section: Azure) -> Iterator[Issue]:
    """Require sizes whose hardware is known, because Slurm's configuration depends on it."""
    sizes = read_sizes()
    for where, machine in list_machines(section).items():
        if machine.size not in sizes:
            group = spec.groups.get(where.removeprefix(f"{SECTION}.groups."))
            alike = [name for name, size in sizes.items() if group is None or bool(size.gpus) == bool(group.gpus.count)]
            near = get_close_matches(machine.size, alike, n=1)
            fix = f"write `size: {near[0]}`" if near else "choose one of those"
            message = f"'{machine.size}' is not a known size; allowed: {', '.join(sizes)}"
            yield error("azure_size", f"{where}.size", message, fix)


def check_gpu_counts(spec: ClusterSpec, section: Azure) -> Iterator[Issue]:
    """Require as many GPUs as the size has: Slurm would schedule others."""
    for name, machine in section.groups.items():
        group, size = spec.groups.get(name), read_sizes().get(machine.size)
        if group is not None and size is not None and group.gpus.count != size.gpus:
            message = f"{group.gpus.count}, but '{machine.size}' has {size.gpus}"
            fix = f"write `gpus: {{count: {size.gpus}, kind: real}}`" if size.gpus else "remove `gpus`"
            yield error("gpu_count", f"groups.{name}.gpus.count", message, f"{fix}, or choose another size")


def check_fabrics(spec: ClusterSpec, section: Azure) -> Iterator[Issue]:
    """Require sizes with InfiniBand for groups with that fabric, and no more machines than can be on one."""
    able = ", ".join(name for name, size in read_sizes().items() if size.infiniband)
    for name, machine in section.groups.items():
        group, size = spec.groups.get(name), read_sizes().get(machine.size)
        if group is None:
            continue
        largest = PLACEMENT_GROUP_MAX if group.fabric == "infiniband" else SCALE_SET_MAX
        if group.fabric == "infiniband" and size is not None and not size.infiniband:
            message = f"'{machine.size}' has no InfiniBand; allowed: {able}"
            fix = f"choose one of those, or write `fabric: tcp` under `groups.{name}`"
            yield error("fabric_size", f"{SECTION}.groups.{name}.size", message, fix)
        if node_count(group) > largest:
            message = f"{node_count(group)}, but a scale set with fabric {group.fabric} has at most {largest} machines"
            yield error("azure_count", f"groups.{name}.count", message, "make the group smaller, or make two of it")


def check_image(_spec: ClusterSpec, section: Azure) -> Iterator[Issue]:
    """Require an image of a fixed version: machines that are added later must be like the first ones."""
    where = f"{SECTION}.image"
    match = MARKETPLACE.match(section.image) or GALLERY.match(section.image)
    if match is None:
        message = f"'{section.image}' is neither PUBLISHER:OFFER:SKU:VERSION nor the id of a gallery's image version"
        yield error("azure_image", where, message, f"write {SLURM_IMAGE}; `az sig image-version list` lists versions")
    elif match["version"] == "latest":
        message = "version 'latest' changes, so that machines of one cluster could differ"
        yield error("azure_image", where, message, "write a version; `az vm image list --all` lists them")
    elif section.image.casefold().startswith(_BARE_IMAGE):
        message = f"'{section.image}' has no Slurm of a release that muster sets up, so machines end with an error"
        yield warning("azure_image", where, message, f"install Slurm on it, and write {SLURM_IMAGE}")


def check_users(spec: ClusterSpec, _section: Azure) -> Iterator[Issue]:
    """Refuse the name and the uid of the account that Azure creates on every machine before bootstrap runs."""
    for name, user in spec.users.items():
        if name == ADMIN:
            message = f"'{name}' is the account that Azure creates on every machine"
            yield error("azure_user", f"users.{name}", message, "choose another name")
        elif user.uid == ADMIN_UID:
            free = next(uid for uid in range(2000, LAST_UID) if uid not in {other.uid for other in spec.users.values()})
            message = f"{user.uid} is the uid of '{ADMIN}', the account that Azure creates on every machine"
            yield error("azure_user", f"users.{name}.uid", message, f"write `uid: {free}`")


def check_storage(spec: ClusterSpec, section: Azure) -> Iterator[Issue]:
    """Require capacities that the kind of filesystem can have, and refuse to promise what cannot be kept."""
    step, largest = FILESYSTEM_TIB[section.filesystem_sku]
    for name, storage in spec.storage.items():
        where = f"storage.{name}.size_gb"
        if storage.kind == "nfs" and storage.keep:
            message = "true is not possible for kind 'nfs': its files are on the controller's disk"
            yield error("azure_keep", f"storage.{name}.keep", message, "write `keep: false`, or `kind: volume`")
        if storage.kind != "volume":
            continue
        smallest = f"write for example `size_gb: {step * GB_PER_TIB}`"
        if storage.size_gb is None:
            yield error("no_size", where, "required, but missing", smallest)
        elif storage.size_gb % (step * GB_PER_TIB) or storage.size_gb > largest * GB_PER_TIB:
            allowed = f"multiples of {step * GB_PER_TIB} ({step} TiB) up to {largest * GB_PER_TIB}"
            message = f"{storage.size_gb} is not a capacity of {section.filesystem_sku}; allowed: {allowed}"
            yield error("azure_capacity", where, message, smallest)


RULES: tuple[_Rule, ...] = (
    check_sizes,
    check_gpu_counts,
    check_fabrics,
    check_image,
    check_users,
    check_storage,
)
