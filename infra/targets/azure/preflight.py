"""Check in a subscription whether a spec can be built there: sizes, quotas, image, and room for filesystems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any

from azure.core.exceptions import HttpResponseError

from cluster import names
from cluster.spec import ClusterSpec, Issue
from cluster.spec.issue import error
from infra.plan import PlannedNode
from infra.targets.azure.bodies import image_reference
from infra.targets.azure.client import Cloud, Message, read_error
from infra.targets.azure.kinds import COMPUTE_API, GALLERIES_API, MACHINE, SCALE_SET, SKUS_API, STORAGE_API
from infra.targets.azure.plan import divide_range, list_machines, plan_azure, resource_id
from infra.targets.azure.refusals import NOT_OFFERED_FIX, QUOTA_FIX, list_codes
from infra.targets.azure.sizes import read_sizes
from infra.targets.azure.spec import MARKETPLACE, SECTION, SLURM_IMAGE, Azure, require_section
from infra.targets.azure.validate import GB_PER_TIB
from infra.targets.rented.section import machine_of

_TOTAL_CORES = "cores"
_FORBIDDEN = 403
# Azure keeps the first four addresses of a subnet and the last one for itself.
RESERVED_ADDRESSES = 5


@dataclass(frozen=True)
class Offer:
    """What a region offers of a size."""

    family: str
    """The name of its quota."""
    zones: frozenset[str]
    restriction: str
    """Why the subscription cannot have it; empty if it can."""
    restricted_zones: frozenset[str]


@dataclass(frozen=True)
class Quota:
    """How many CPUs of a family, or of all, a subscription has and may have in a region."""

    name: str
    used: int
    limit: int


@dataclass(frozen=True)
class Account:
    """What a subscription offers in a region, as far as a spec asks for it."""

    offers: Mapping[str, Offer]
    quotas: Mapping[str, Quota]
    has_image: bool
    image_refusal: str
    """Why the account may not read the gallery of the image, which can be in another subscription; empty if it may."""
    image_plan: str
    """Name of the marketplace's plan that the image is sold by; empty if it is free to use."""
    filesystem_addresses: int
    """How many addresses the filesystems need."""
    existing: Mapping[str, int]
    """How many machines there are already, by the id of the machine or scale set."""


def read_account(cloud: Cloud, spec: ClusterSpec) -> Account:
    """Return what the subscription of a spec offers."""
    section = require_section(spec)
    scope = f"/subscriptions/{section.subscription}"
    named = {machine.size for machine in list_machines(section).values()}
    skus = cloud.list(f"{scope}/providers/Microsoft.Compute/skus", SKUS_API, **{"$filter": _location(section)})
    offers = {
        sku["name"]: _read_offer(sku, section.region)
        for sku in skus
        if sku.get("resourceType") == "virtualMachines" and sku["name"] in named
    }
    usages = cloud.list(f"{scope}/providers/Microsoft.Compute/locations/{section.region}/usages", COMPUTE_API)
    image, refusal = _find_image(cloud, section)
    plan = (image or {}).get("properties", {}).get("plan") or {}
    return Account(
        offers,
        {usage["name"]["value"].casefold(): _read_quota(usage) for usage in usages},
        image is not None,
        refusal,
        str(plan.get("name", "")),
        sum(_count_addresses(cloud, section, tib) for tib in _list_capacities(spec)),
        {id_: count for id_ in _list_ids(spec) if (count := _count_machines(cloud, id_))},
    )


def judge_account(spec: ClusterSpec, account: Account) -> Iterator[Issue]:
    """Yield what stops a spec in a subscription. Pure."""
    section = require_section(spec)
    planned = dict.fromkeys((node.role, node.group) for node in plan_azure(spec).nodes)
    for role, group in planned:
        where = f"{SECTION}.groups.{group}.size" if group else f"{SECTION}.{role}.size"
        yield from _judge_size(section, where, machine_of(section, role, group).size, account)
    yield from _judge_quotas(spec, account)
    if account.image_refusal:
        message = f"'{section.image}' cannot be read: {account.image_refusal}"
        yield error("azure_image", f"{SECTION}.image", message, "ask for the role `Reader` on the gallery")
    elif not account.has_image:
        message = f"'{section.image}' does not exist in {section.region}, or the account may not see it"
        lists = "az vm image list --all" if MARKETPLACE.match(section.image) else "az sig image-version list"
        yield error("azure_image", f"{SECTION}.image", message, f"correct it; `{lists}` lists images")
    elif account.image_plan:
        message = f"'{section.image}' is sold by the plan '{account.image_plan}', whose terms somebody has to accept"
        fix = f"choose an image without a plan: write {SLURM_IMAGE}"
        yield error("azure_image", f"{SECTION}.image", message, fix)
    _nodes, filesystems = divide_range(plan_azure(spec).cidr or "")
    room = IPv4Network(filesystems).num_addresses - RESERVED_ADDRESSES
    if account.filesystem_addresses > room:
        message = f"a quarter of it, {filesystems}, has {room} addresses; needed for filesystems: "
        fix = "write a larger range, for example 10.88.0.0/16"
        yield error("azure_subnet", "network.cidr", f"{message}{account.filesystem_addresses}", fix)


def _judge_size(section: Azure, where: str, size: str, account: Account) -> Iterator[Issue]:
    offer = account.offers.get(size)
    if offer is None:
        yield error("azure_size", where, f"'{size}' is not offered in {section.region}", NOT_OFFERED_FIX)
    elif offer.restriction:
        message = f"'{size}' is not available to the subscription in {section.region} ({offer.restriction})"
        yield error("azure_size", where, message, NOT_OFFERED_FIX)
    elif section.zone and section.zone not in offer.zones - offer.restricted_zones:
        able = ", ".join(sorted(offer.zones - offer.restricted_zones)) or "none"
        message = f"'{size}' is not available in zone {section.zone} of {section.region}; allowed: {able}"
        yield error("azure_zone", where, message, NOT_OFFERED_FIX)


def _judge_quotas(spec: ClusterSpec, account: Account) -> Iterator[Issue]:
    """Compare quotas with the CPUs of the machines that do not exist yet."""
    section, sizes = require_section(spec), read_sizes()
    missing: Counter[str] = Counter()
    first: dict[str, str] = {}
    for where, size, count in _list_missing(spec, account):
        if size not in account.offers or not count:
            continue
        for name in (account.offers[size].family.casefold(), _TOTAL_CORES):
            missing[name] += sizes[size].cpus * count
            first.setdefault(name, where)
    for name, cpus in missing.items():
        quota = account.quotas.get(name)
        if quota is not None and quota.used + cpus > quota.limit:
            message = f"quota '{quota.name}' in {section.region} has {quota.limit - quota.used} CPUs left"
            message += f" ({quota.used} of {quota.limit} are used); needed: {cpus}"
            yield error("azure_quota", first[name], message, QUOTA_FIX)


def _list_missing(spec: ClusterSpec, account: Account) -> Iterator[tuple[str, str, int]]:
    """Yield property, size, and the number of machines that do not exist yet."""
    nodes: list[PlannedNode] = list(plan_azure(spec).nodes)
    for node in nodes:
        if node.group is None:
            id_ = resource_id(spec, MACHINE.type, names.container(spec.name, node.name))
            yield f"{SECTION}.{node.role}.size", node.instance_type or "", 1 - account.existing.get(id_, 0)
    for group in spec.groups:
        members = [node for node in nodes if node.group == group]
        id_ = resource_id(spec, SCALE_SET.type, names.volume(spec.name, group))
        if members:
            count = max(len(members) - account.existing.get(id_, 0), 0)
            yield f"{SECTION}.groups.{group}.size", members[0].instance_type or "", count


def _list_ids(spec: ClusterSpec) -> Iterator[str]:
    for node in plan_azure(spec).nodes:
        if node.group is None:
            yield resource_id(spec, MACHINE.type, names.container(spec.name, node.name))
    for group in spec.groups:
        yield resource_id(spec, SCALE_SET.type, names.volume(spec.name, group))


def _count_machines(cloud: Cloud, id_: str) -> int:
    existing = cloud.get(id_, COMPUTE_API)
    return int((existing.get("sku") or {}).get("capacity", 1)) if existing else 0


def _list_capacities(spec: ClusterSpec) -> Iterator[float]:
    for storage in spec.storage.values():
        if storage.kind == "volume":
            yield (storage.size_gb or 0) / GB_PER_TIB


def _count_addresses(cloud: Cloud, section: Azure, tib: float) -> int:
    path = f"/subscriptions/{section.subscription}/providers/Microsoft.StorageCache/getRequiredAmlFSSubnetsSize"
    body = {"sku": {"name": section.filesystem_sku}, "storageCapacityTiB": tib}
    return int(cloud.call("POST", path, STORAGE_API, body)["filesystemSubnetSize"])


def _find_image(cloud: Cloud, section: Azure) -> tuple[Message | None, str]:
    """Return the image, if it exists, and why its gallery cannot be read."""
    reference = image_reference(section.image)
    if "id" in reference:
        try:
            return cloud.get(reference["id"], GALLERIES_API), ""
        except HttpResponseError as failed:
            if failed.status_code != _FORBIDDEN:
                raise
            return None, ", ".join(list_codes(read_error(failed))) or f"status {_FORBIDDEN}"
    path = (
        f"/subscriptions/{section.subscription}/providers/Microsoft.Compute/locations/{section.region}"
        f"/publishers/{reference['publisher']}/artifacttypes/vmimage/offers/{reference['offer']}"
        f"/skus/{reference['sku']}/versions/{reference['version']}"
    )
    return cloud.get(path, COMPUTE_API), ""


def _location(section: Azure) -> str:
    return f"location eq '{section.region}'"


def _read_offer(sku: Mapping[str, Any], region: str) -> Offer:
    places = [place for place in sku.get("locationInfo", []) if place.get("location", "").casefold() == region]
    restrictions = sku.get("restrictions", [])
    whole = [str(entry.get("reasonCode", "")) for entry in restrictions if entry.get("type") == "Location"]
    zones = [entry.get("restrictionInfo", {}).get("zones", []) for entry in restrictions if entry.get("type") == "Zone"]
    return Offer(
        str(sku.get("family", "")),
        frozenset(zone for place in places for zone in place.get("zones", [])),
        whole[0] if whole else "",
        frozenset(zone for listed in zones for zone in listed),
    )


def _read_quota(usage: Mapping[str, Any]) -> Quota:
    name = usage["name"].get("localizedValue") or usage["name"]["value"]
    return Quota(str(name), int(usage["currentValue"]), int(usage["limit"]))
