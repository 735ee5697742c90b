"""A resource on Azure as a Pulumi resource: one provider for all kinds but scale sets, because the API is uniform."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult

from infra.resources.error import ResourceError
from infra.resources.properties import Properties, changed
from infra.targets.azure.answers import is_running, read_address, read_machine_id, read_power
from infra.targets.azure.bodies import with_user_data
from infra.targets.azure.client import Cloud, Message, open_cloud
from infra.targets.azure.drift import is_outdated, without_disk
from infra.targets.azure.kinds import FILESYSTEM, KINDS, MACHINE, Kind
from infra.targets.azure.removal import delete_resource
from infra.targets.azure.validate import GB_PER_TIB
from infra.targets.rented.comparison import differs
from infra.targets.rented.controller import check_controller
from infra.targets.rented.owner import describe_owner, is_same_owner
from infra.targets.rented.progress import report_creation

_SUCCEEDED, _CREATING = "Succeeded", "Creating"
_WORDS = {"address": "address", "machine_id": "id of its own"}


class CloudResourceProvider(ResourceProvider):
    """The provider of CloudResource; its inputs are ResourceArgs."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        kind = KINDS[props["kind"]]
        with report_creation([props["node"]] if props["node"] else []), open_cloud(props["where"]) as cloud:
            outputs = _require_outputs(kind, props, _create(cloud, kind, props))
        return CreateResult(props["arm_id"], props | outputs)

    def read(self, id_: str, props: Properties) -> ReadResult:
        kind = KINDS[props["kind"]]
        with open_cloud(props["where"]) as cloud:
            resource = get_resource(cloud, kind, id_)
        if resource is None:
            return ReadResult("", {})
        return ReadResult(id_, props | _read_outputs(resource) | {"drift": find_drift(kind, props, resource)})

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        replaces = changed(olds, news, ("kind", "arm_id", "region"))
        if not KINDS[news["kind"]].updatable:
            replaces += changed(olds, news, ("body",))
        updates = (
            changed(olds, news, ("body", "labels")) or olds.get("drift") or _list_missing(KINDS[news["kind"]], olds)
        )
        return DiffResult(changes=bool(replaces or updates), replaces=replaces, delete_before_replace=True)

    def update(self, id_: str, olds: Properties, news: Properties) -> UpdateResult:
        kind = KINDS[news["kind"]]
        with open_cloud(news["where"]) as cloud:
            if changed(olds, news, ("body", "labels")) or set(olds.get("drift") or ()) - {"state", *_WORDS}:
                _update(cloud, kind, news)
            _start_if_stopped(cloud, kind, id_)
            outputs = _require_outputs(kind, news, get_resource(cloud, kind, id_) or {})
        return UpdateResult(news | outputs)

    def delete(self, id_: str, props: Properties) -> None:
        delete_resource(KINDS[props["kind"]], id_, props["where"])


@dataclass(frozen=True)
class ResourceArgs:
    """The inputs of a CloudResource or a ScaleSet."""

    kind: str
    arm_id: str
    """The id of the resource, which follows from the names of cluster and resource."""
    subscription: str
    region: str
    labels: Mapping[str, str]
    """Its tags."""
    body: Mapping[str, Any]
    where: str
    """The property that it comes from, for errors."""
    node: str = ""
    """The node whose machine it is."""
    user_data: pulumi.Input[str] = ""
    """The cloud-init user data of a machine. It matters only at creation, so another one changes nothing."""
    ssh_public_key: pulumi.Input[str] = ""


class CloudResource(Resource, module="muster", name="AzureResource"):
    """A resource group, network, security group, gateway, address, interface, filesystem or machine."""

    address: pulumi.Output[str]
    """Of an interface inside the network, of a public address, or of a filesystem's server; else empty."""
    machine_id: pulumi.Output[str]
    """The id that no other machine ever has; empty if it is no machine."""

    def __init__(self, name: str, args: ResourceArgs, opts: pulumi.ResourceOptions) -> None:
        outputs = dict.fromkeys(("address", "machine_id", "drift"))
        super().__init__(CloudResourceProvider(), name, {**vars(args), **outputs}, opts)


def put_resource(cloud: Cloud, kind: Kind, props: Properties) -> Message:
    """Create or update a resource and return it as it is afterwards."""
    body = dict(props["body"])
    if props["user_data"]:
        body = with_user_data(body, props["user_data"], props["ssh_public_key"])
    location = {"location": props["region"], "tags": dict(props["labels"])}
    answer = cloud.put(kind, props["arm_id"], body | location)
    return (get_resource(cloud, kind, props["arm_id"]) or answer) if kind == MACHINE else answer


def get_resource(cloud: Cloud, kind: Kind, id_: str) -> Message | None:
    """Return a resource with its state; None if it does not exist."""
    return cloud.get(id_, kind.api, **({"$expand": "instanceView"} if kind == MACHINE else {}))


def check_owner(kind: Kind, props: Properties, existing: Message | None) -> None:
    """Raise ResourceError if a resource of another owner has the id; one of this cluster's is taken over."""
    labels = (existing or {}).get("tags") or {}
    if existing is not None and not is_same_owner(labels, props["labels"]):
        what = f"{kind.name} {_read_name(props)} exists, {describe_owner(labels)}"
        raise ResourceError(props["where"], what, "rename the cluster, or remove it there")


def find_drift(kind: Kind, props: Properties, resource: Message) -> list[str]:
    """Return what differs from the inputs or is missing: body, tags, the state of a machine, an address."""
    drift = ["body"] if kind.watched and differs(props["body"], resource) else []
    tags = resource.get("tags") or {}
    if any(tags.get(key) != value for key, value in props["labels"].items()):
        drift.append("tags")
    drift += _list_missing(kind, _read_outputs(resource))
    return [*drift, "state"] if kind == MACHINE and not is_running(resource) else drift


def _create(cloud: Cloud, kind: Kind, props: Properties) -> Message:
    """Create a resource, or take over the one that an interrupted run has created."""
    existing = get_resource(cloud, kind, props["arm_id"])
    check_owner(kind, props, existing)
    state = (existing or {}).get("properties", {}).get("provisioningState")
    if existing is None:
        return put_resource(cloud, kind, props)
    if kind == FILESYSTEM:
        _check_filesystem(props, existing)
    if state != _SUCCEEDED:
        # A machine that is being created, or was never placed, has nothing on its disk.
        if state != _CREATING and read_power(existing):
            fix = "run it again when the state is Succeeded, which `az vm reapply` restores"
            check_controller(props, _read_name(props), f"in state {state}", fix)
        return _replace(cloud, kind, props)
    return _take_over(cloud, kind, props, existing)


def _take_over(cloud: Cloud, kind: Kind, props: Properties, existing: Message) -> Message:
    """Return a resource that exists as it should be; the spec may have changed since it was created."""
    if kind.updatable:
        return put_resource(cloud, kind, props)
    stopped = kind == MACHINE and not is_running(existing)
    if is_outdated(kind, without_disk(props["body"]) if stopped else props["body"], existing):
        return _replace_outdated(cloud, kind, props)
    _update(cloud, kind, props)
    _start_if_stopped(cloud, kind, props["arm_id"])
    resource = get_resource(cloud, kind, props["arm_id"]) or existing
    return _replace_outdated(cloud, kind, props) if is_outdated(kind, props["body"], resource) else resource


def _replace_outdated(cloud: Cloud, kind: Kind, props: Properties) -> Message:
    """Create a resource again that was created from another spec."""
    how = "with another size, image, disk, zone or public address"
    check_controller(props, _read_name(props), how, "undo the change")
    return _replace(cloud, kind, props)


def _replace(cloud: Cloud, kind: Kind, props: Properties) -> Message:
    """Create a resource again that has failed or is outdated; a machine from scratch, as Azure cannot change it."""
    if kind == MACHINE:
        cloud.delete(kind, props["arm_id"])
    return put_resource(cloud, kind, props)


def _check_filesystem(props: Properties, existing: Message) -> None:
    """Raise ResourceError if a filesystem was created from another spec: it may have data, so it is not replaced."""
    if is_outdated(FILESYSTEM, props["body"], existing):
        capacity = existing.get("properties", {}).get("storageCapacityTiB", 0)
        sku = (existing.get("sku") or {}).get("name", "unknown")
        zones = ", ".join(existing.get("zones") or ()) or "none"
        how = f"with {int(capacity * GB_PER_TIB)} GB, kind {sku} and zone {zones}"
        fix = "write these into the stack file, or remove the filesystem if its data is not needed"
        raise ResourceError(props["where"], f"filesystem {_read_name(props)} exists {how}", fix)


def _update(cloud: Cloud, kind: Kind, props: Properties) -> None:
    """Change a resource in place; of those whose body cannot change, only the tags."""
    if kind.updatable:
        put_resource(cloud, kind, props)
    else:
        cloud.operate("PATCH", props["arm_id"], kind.api, kind.timeout_s, {"tags": dict(props["labels"])})


def _start_if_stopped(cloud: Cloud, kind: Kind, id_: str) -> None:
    if kind == MACHINE and not is_running(get_resource(cloud, kind, id_) or {}):
        cloud.operate("POST", f"{id_}/start", kind.api, kind.timeout_s)


def _read_outputs(resource: Message) -> Properties:
    server = resource.get("properties", {}).get("clientInfo", {}).get("mgsAddress", "")
    return {"address": read_address(resource) or server, "machine_id": read_machine_id(resource), "drift": []}


def _require_outputs(kind: Kind, props: Properties, resource: Message) -> Properties:
    """Return the outputs of a resource; raise ResourceError if one is missing that others need."""
    outputs = _read_outputs(resource)
    for key in _list_missing(kind, outputs):
        what = f"Azure reports success, but {kind.name} {_read_name(props)} has no {_WORDS[key]}"
        raise ResourceError(props["where"], what, "run it again: it asks for it again")
    return outputs


def _read_name(props: Properties) -> str:
    return str(props["arm_id"].rpartition("/")[2])


def _list_missing(kind: Kind, outputs: Properties) -> list[str]:
    required = [key for key, needed in (("address", kind.has_address), ("machine_id", kind == MACHINE)) if needed]
    return [key for key in required if not outputs.get(key)]
