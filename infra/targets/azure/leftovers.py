"""The resources of a cluster on Azure, by tag: for receipts, and if the state file is lost."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from azure.core.exceptions import ClientAuthenticationError, HttpResponseError

from cluster import names
from infra.home import Home
from infra.resources.error import ResourceError
from infra.targets.azure.client import Cloud, open_cloud, read_error
from infra.targets.azure.kinds import FILESYSTEM, GROUP, KINDS, MACHINE, RESOURCES_API, SCALE_SET, Kind, find_kind
from infra.targets.azure.refusals import explain_error
from infra.targets.azure.removal import delete_resource
from infra.targets.azure.sizes import read_sizes
from infra.targets.rented.removal import retry_while_in_use
from infra.targets.target import Deployment, Leftover, Leftovers

_WHERE = "azure.subscription"
_UNAUTHORIZED = 401
_ORDER = {kind.name: number for number, kind in enumerate(KINDS.values())}
_MACHINES = {SCALE_SET.name, MACHINE.name}
# Kinds that must be gone before a resource of the key can be removed.
_USERS: Mapping[str, set[str]] = {
    "network interface": {MACHINE.name},
    "disk": _MACHINES,
    FILESYSTEM.name: _MACHINES,
    "network": {*_MACHINES, "network interface", FILESYSTEM.name},
    "NAT gateway": {"network"},
    "public address": {*_MACHINES, "network interface", "NAT gateway"},
    "security group": {"network"},
    GROUP.name: set(KINDS) - {GROUP.name},
}
Found = tuple[Kind, Mapping[str, Any]]


def find_leftovers(deployment: Deployment) -> Leftovers:
    """Return the resources in a subscription that have the cluster's tags, in the order of removal.

    Azure creates boot disks without tags: they are the cluster's by their name, in its own resource group.
    """
    home = names.home_labels(Home.of(os.environ).root)[names.HOME]
    scope = f"/subscriptions/{deployment.account}"
    tagged = f"tagName eq '{names.CLUSTER}' and tagValue eq '{deployment.cluster}'"
    with open_cloud(_WHERE) as cloud:
        try:
            groups = [g for g in _list(cloud, f"{scope}/resourcegroups", tagged) if _is_of(g, deployment.cluster, home)]
            pairs = [
                (kind, resource)
                for resource in _list(cloud, f"{scope}/resources", tagged)
                if _is_of(resource, deployment.cluster, home) and (kind := find_kind(resource["type"]))
            ]
            inside = [resource for group in groups for resource in cloud.list(f"{group['id']}/resources", GROUP.api)]
        except ClientAuthenticationError:
            raise
        except HttpResponseError as error:
            if error.status_code == _UNAUTHORIZED:
                raise
            why = str(explain_error("", error.status_code, read_error(error)))
            return Leftovers([], (f"resources of the subscription: {why}",), frozenset(KINDS))
        listed = {resource["id"].casefold() for _kind, resource in pairs}
        pairs += [
            (kind, resource)
            for resource in inside
            if resource["id"].casefold() not in listed and (kind := _find_own_disk(resource, deployment.cluster))
        ]
        sizes = {r["id"]: _read_size(cloud, kind, r) for kind, r in pairs if kind.name in _MACHINES}
    pairs += [(GROUP, group) for group in groups]
    pairs.sort(key=lambda entry: _ORDER[entry[0].name])
    return Leftovers([_describe(kind, resource, pairs, sizes) for kind, resource in pairs])


def remove_leftover(leftover: Leftover, until: float) -> None:
    """Delete a resource; if it is in use, retry until `until` (time.monotonic), then raise InUseError."""
    kind = KINDS[leftover.kind]
    retry_while_in_use(partial(delete_resource, kind, _expand(kind, leftover.name), _WHERE), until)


def measure_leftover(leftover: Leftover) -> int | None:
    """Return the capacity of a filesystem in bytes, which is what it costs; None if it does not answer."""
    try:
        with open_cloud(_WHERE) as cloud:
            filesystem = cloud.get(_expand(FILESYSTEM, leftover.name), FILESYSTEM.api)
    except ResourceError:
        return None
    size = (filesystem or {}).get("properties", {}).get("storageCapacityTiB")
    return int(float(size) * 2**40) if size else None


def _list(cloud: Cloud, path: str, filter_: str) -> Iterable[dict[str, Any]]:
    return cloud.list(path, RESOURCES_API, **{"$filter": filter_, "$expand": "createdTime"})


def _is_of(resource: Mapping[str, Any], cluster: str, home: str) -> bool:
    tags = resource.get("tags") or {}
    return bool(tags.get(names.CLUSTER) == cluster and tags.get(names.HOME) == home)


def _find_own_disk(resource: Mapping[str, Any], cluster: str) -> Kind | None:
    kind = find_kind(resource["type"])
    own = str(resource.get("name", "")).casefold().startswith(f"{names.network(cluster)}-".casefold())
    return kind if own and kind is not None and kind.name == "disk" else None


def _read_size(cloud: Cloud, kind: Kind, resource: Mapping[str, Any]) -> tuple[str, int]:
    """Return the size of a machine, or of those of a scale set, and how many there are."""
    if kind == SCALE_SET:
        sku = resource.get("sku") or {}
        return str(sku.get("name", "")), int(sku.get("capacity") or 0)
    described = cloud.get(resource["id"], kind.api) or {}
    return str(described.get("properties", {}).get("hardwareProfile", {}).get("vmSize", "")), 1


def _describe(
    kind: Kind, resource: Mapping[str, Any], pairs: Iterable[Found], sizes: Mapping[str, tuple[str, int]]
) -> Leftover:
    tags, region = resource.get("tags") or {}, str(resource.get("location", ""))
    size, count = sizes.get(resource["id"], ("", 0))
    priced = read_sizes().get(size)
    return Leftover(
        kind.name,
        _shorten(str(resource["id"])),
        created=str(resource.get("createdTime", "")),
        stack=tags.get(names.STACK, ""),
        home=tags.get(names.HOME, ""),
        region=region,
        usd_per_hour=count * (priced.prices.get(region, 0.0) if priced else 0.0),
        keep_reason=_find_keep_reason(kind, resource, pairs),
        is_node=kind.name in _MACHINES,
        used_by=frozenset(_USERS.get(kind.name, ())),
    )


def _shorten(id_: str) -> str:
    """Return SUBSCRIPTION/GROUP/NAME, or SUBSCRIPTION/GROUP: with its kind, a resource needs no more to be found."""
    _root, _subscriptions, subscription, _groups, group, *others = id_.split("/")
    return "/".join([subscription, group, *others[-1:]])


def _expand(kind: Kind, name: str) -> str:
    subscription, group, *others = name.split("/")
    scope = f"/subscriptions/{subscription}/resourceGroups/{group}"
    return f"{scope}/providers/{kind.type}/{others[0]}" if others else scope


def _find_keep_reason(kind: Kind, resource: Mapping[str, Any], pairs: Iterable[Found]) -> str:
    """Return why a resource stays: it is a filesystem that is kept, or what such a filesystem cannot be without."""
    staying = [r["name"] for k, r in pairs if k == FILESYSTEM and (r.get("tags") or {}).get(names.KEEP) == "true"]
    if kind == FILESYSTEM:
        return "keep: true" if resource["name"] in staying else ""
    # The subnet of a filesystem has the security group and the gateway, and the gateway has its address.
    is_needed = kind == GROUP or kind.name in ("network", "NAT gateway", "security group")
    is_needed = is_needed or (kind.name == "public address" and str(resource["name"]).endswith("-nat"))
    return f"filesystem {', '.join(sorted(staying))} needs it" if staying and is_needed else ""
