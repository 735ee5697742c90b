"""A resource on Nebius as a Pulumi resource: one provider for all kinds, because the API treats them alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
from grpc import StatusCode
from nebius.aio.service_error import RequestError
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult

from infra.resources.error import ResourceError
from infra.resources.properties import Properties, changed, unknown
from infra.targets.nebius.client import STOPPED, Cloud, Message, normalize_spec, open_cloud, read_state
from infra.targets.nebius.drift import find_outdated
from infra.targets.nebius.kinds import FILESYSTEM, KINDS, Kind
from infra.targets.nebius.refusals import is_code
from infra.targets.rented.controller import check_controller
from infra.targets.rented.owner import describe_owner, is_same_owner
from infra.targets.rented.progress import report_creation

_REPLACING = ("kind", "project", "parent", "name")


class CloudResourceProvider(ResourceProvider):
    """The provider of CloudResource; its inputs are ResourceArgs."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        kind = KINDS[props["kind"]]
        with report_creation([props["node"]] if props["node"] else []), open_cloud(props["where"]) as cloud:
            id_ = _create(cloud, kind, props)
            resource = cloud.wait_until_ready(kind, id_)
        return CreateResult(id_, props | _read_outputs(resource))

    def read(self, id_: str, props: Properties) -> ReadResult:
        kind = KINDS[props["kind"]]
        with open_cloud(props["where"]) as cloud:
            resource = cloud.get(kind, id_)
        if resource is None:
            return ReadResult("", {})
        return ReadResult(id_, props | _read_outputs(resource) | {"drift": find_drift(kind, props, resource)})

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        kind = KINDS[news["kind"]]
        fields = list_changed_fields(olds["spec"], news["spec"])
        wrong = fields | kind.watched.intersection(olds.get("drift") or ())
        replaces = changed(olds, news, _REPLACING) + (["spec"] if wrong - kind.updatable else [])
        updates = fields or changed(olds, news, ("labels",)) or olds.get("drift")
        return DiffResult(changes=bool(replaces or updates), replaces=replaces, delete_before_replace=True)

    def update(self, id_: str, _olds: Properties, news: Properties) -> UpdateResult:
        kind = KINDS[news["kind"]]
        with open_cloud(news["where"]) as cloud:
            cloud.update(kind, _metadata(news) | {"id": id_}, _spec(news))
            cloud.start_if_stopped(kind, id_)
            resource = cloud.wait_until_ready(kind, id_)
        return UpdateResult(news | _read_outputs(resource))

    def delete(self, id_: str, props: Properties) -> None:
        with open_cloud(props["where"]) as cloud:
            cloud.delete(KINDS[props["kind"]], id_)


@dataclass(frozen=True)
class ResourceArgs:
    """The inputs of a CloudResource."""

    kind: str
    project: str
    name: str
    labels: Mapping[str, str]
    spec: pulumi.Input[Mapping[str, Any]]
    where: str
    """The property that it comes from, for errors."""
    parent: pulumi.Input[str] = ""
    """What it is part of; by default the project."""
    node: str = ""
    """The node whose machine it is."""
    user_data: pulumi.Input[str] = ""
    """The cloud-init user data of an instance. It matters only at creation, so another one changes nothing."""


class CloudResource(Resource, module="muster", name="NebiusResource"):
    """A network, subnet, security group or rule, GPU cluster, shared filesystem or instance."""

    address: pulumi.Output[str]
    public_address: pulumi.Output[str]
    path: pulumi.Output[list[str]]
    """Switches of the InfiniBand fabric above an instance, from the root down."""

    def __init__(self, name: str, args: ResourceArgs, opts: pulumi.ResourceOptions) -> None:
        outputs = dict.fromkeys(("created", "address", "public_address", "path", "drift"))
        # The user data of an instance has its private host key.
        secret = pulumi.ResourceOptions(additional_secret_outputs=["user_data"])
        merged = pulumi.ResourceOptions.merge(opts, secret)
        super().__init__(CloudResourceProvider(), name, {**vars(args), **outputs}, merged)


def list_changed_fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> frozenset[str]:
    """Return the fields of two specs that differ; a value that a preview does not have yet counts as unchanged."""
    if unknown(new) and not isinstance(new, Mapping):
        return frozenset()
    return frozenset(changed(old, new, (*old, *(key for key in new if key not in old))))


def find_drift(kind: Kind, props: Properties, resource: Message) -> list[str]:
    """Return what differs from the inputs: fields of the spec, labels, or the state of an instance that was stopped."""
    spec = props["spec"]
    drift = [key for key in sorted(kind.watched) if key in spec and resource.get("spec", {}).get(key) != spec[key]]
    labels = resource["metadata"].get("labels", {})
    if any(labels.get(key) != value for key, value in props["labels"].items()):
        drift.append("labels")
    return [*drift, "state"] if read_state(resource) == STOPPED else drift


def read_address(interface: Message, name: str) -> str:
    """Return an address of a network interface, which the API writes with its prefix length."""
    return str(interface.get(name, {}).get("address", "")).partition("/")[0]


def _create(cloud: Cloud, kind: Kind, props: Properties) -> str:
    """Create a resource, or take over the one that an interrupted run has created; return its id."""
    try:
        return cloud.create(kind, _metadata(props), _spec(props))
    except RequestError as error:
        if not is_code(error, StatusCode.ALREADY_EXISTS):
            raise
        resource = cloud.get_by_name(kind, _parent(props), props["name"])
        if resource is None:
            raise
    labels = resource["metadata"].get("labels", {})
    if not is_same_owner(labels, props["labels"]):
        what = f"{kind.name} {props['name']} exists, {describe_owner(labels)}"
        raise ResourceError(props["where"], what, "rename the cluster, or remove it there")
    return _take_over(cloud, kind, props, resource)


def _take_over(cloud: Cloud, kind: Kind, props: Properties, resource: Message) -> str:
    """Return the id of a resource that is as the inputs describe it; the spec may have changed since its creation.

    What cannot be changed into that is deleted and created again.
    """
    id_ = str(resource["metadata"]["id"])
    outdated = find_outdated(kind, normalize_spec(kind, props["spec"]), resource.get("spec", {}))
    if kind.updatable.issuperset(outdated):
        cloud.start_if_stopped(kind, id_)
        if find_drift(kind, props, cloud.wait_until_ready(kind, id_)) or outdated:
            cloud.update(kind, _metadata(props) | {"id": id_}, _spec(props))
        return id_
    _check_replaceable(kind, props, resource, outdated)
    if read_state(resource) != STOPPED:
        # What is still being created cannot be deleted.
        cloud.wait_until_ready(kind, id_)
    cloud.delete(kind, id_)
    return cloud.create(kind, _metadata(props), _spec(props))


def _check_replaceable(kind: Kind, props: Properties, resource: Message, outdated: list[str]) -> None:
    """Raise ResourceError for a filesystem, which may have data, and for the controller without FORCE=1."""
    if kind == FILESYSTEM:
        what = f"filesystem {props['name']} exists with type {resource['spec'].get('type', 'unknown')}"
        fix = "write it into `nebius.filesystem_type`, or remove the filesystem if its data is not needed"
        raise ResourceError(props["where"], what, fix)
    check_controller(props, props["name"], f"with other settings ({', '.join(outdated)})", "undo the change")


def _metadata(props: Properties) -> Message:
    return {"parentId": _parent(props), "name": props["name"], "labels": dict(props["labels"])}


def _spec(props: Properties) -> Message:
    """Return the spec with what may change without another resource: user data, and the labels of the boot disk."""
    spec = dict(props["spec"])
    if props["user_data"]:
        spec["cloudInitUserData"] = props["user_data"]
    if "bootDisk" in spec:
        disk = {**spec["bootDisk"]["managedDisk"], "labels": dict(props["labels"])}
        spec["bootDisk"] = {**spec["bootDisk"], "managedDisk": disk}
    return spec


def _parent(props: Properties) -> str:
    return str(props.get("parent") or props["project"])


def _read_outputs(resource: Message) -> Properties:
    status = resource.get("status", {})
    interface: Message = next(iter(status.get("networkInterfaces", [])), {})
    return {
        "created": resource["metadata"].get("createdAt", ""),
        "address": read_address(interface, "ipAddress"),
        "public_address": read_address(interface, "publicIpAddress"),
        "path": status.get("infinibandTopologyPath", {}).get("path", []),
        "drift": [],
    }
