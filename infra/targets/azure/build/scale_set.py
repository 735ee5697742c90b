"""The scale set of a node group as a Pulumi resource: its instances become the nodes of the group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult

from infra.resources.error import ResourceError
from infra.resources.properties import Properties, changed
from infra.targets.azure.answers import read_address
from infra.targets.azure.build.resource import ResourceArgs, check_owner, put_resource
from infra.targets.azure.client import Cloud, Message, open_cloud
from infra.targets.azure.drift import has_public_address, is_outdated
from infra.targets.azure.instances import Instance, assign_nodes, read_instances
from infra.targets.azure.kinds import SCALE_SET, SCALE_SET_NETWORK_API
from infra.targets.azure.removal import delete_resource
from infra.targets.rented.progress import report_creation


class ScaleSetProvider(ResourceProvider):
    """The provider of ScaleSet. Inputs: ResourceArgs and the nodes; outputs: what each node's machine is."""

    serialize_as_secret_always = False

    def create(self, props: Properties) -> CreateResult:
        id_ = props["arm_id"]
        with report_creation(props["nodes"]), open_cloud(props["where"]) as cloud:
            existing = cloud.get(id_, SCALE_SET.api)
            check_owner(SCALE_SET, props, existing)
            if existing is not None:
                _remove_outdated(cloud, props, existing)
            put_resource(cloud, SCALE_SET, props)
            _start_instances(cloud, id_, _list_instances(cloud, id_))
            machines = _read_machines(cloud, props, {})
        return CreateResult(id_, props | {"machines": machines, "drift": []})

    def read(self, id_: str, props: Properties) -> ReadResult:
        with open_cloud(props["where"]) as cloud:
            existing = cloud.get(id_, SCALE_SET.api)
            if existing is None:
                return ReadResult("", {})
            instances = _list_instances(cloud, id_)
        return ReadResult(id_, props | {"drift": find_drift(props, existing, instances)})

    def diff(self, _id: str, olds: Properties, news: Properties) -> DiffResult:
        replaces = changed(olds, news, ("arm_id", "region"))
        if without_capacity(olds["body"]) != without_capacity(news["body"]):
            replaces.append("body")
        updates = changed(olds, news, ("nodes", "labels")) or olds.get("drift") or _list_incomplete(olds)
        return DiffResult(changes=bool(replaces or updates), replaces=replaces, delete_before_replace=True)

    def update(self, id_: str, olds: Properties, news: Properties) -> UpdateResult:
        numbers = {node: machine["number"] for node, machine in (olds.get("machines") or {}).items()}
        with open_cloud(news["where"]) as cloud:
            instances = _list_instances(cloud, id_)
            assigned = assign_nodes(news["nodes"], [instance for instance in instances if not instance.failed], numbers)
            _delete_instances(
                cloud, id_, [instance for instance in instances if instance.number not in assigned.values()]
            )
            _start_instances(cloud, id_, [instance for instance in instances if instance.number in assigned.values()])
            patch = {"sku": news["body"]["sku"], "tags": dict(news["labels"])}
            cloud.operate("PATCH", id_, SCALE_SET.api, SCALE_SET.timeout_s, patch)
            machines = _read_machines(cloud, news, assigned)
        return UpdateResult(news | {"machines": machines, "drift": []})

    def delete(self, id_: str, props: Properties) -> None:
        delete_resource(SCALE_SET, id_, props["where"])


class ScaleSet(Resource, module="muster", name="AzureScaleSet"):
    """The machines of a node group."""

    machines: pulumi.Output[dict[str, dict[str, str]]]
    """By node: `number`, `arm_id` and `machine_id` of its instance, `address` and `public_address`."""

    def __init__(self, name: str, args: ResourceArgs, nodes: Sequence[str], opts: pulumi.ResourceOptions) -> None:
        props = {**vars(args), "nodes": list(nodes), "machines": None, "drift": None}
        super().__init__(ScaleSetProvider(), name, props, opts)


def find_drift(props: Properties, existing: Message, instances: Sequence[Instance]) -> list[str]:
    """Return what differs from the inputs: nodes without a running instance, instances without a node, and tags."""
    usable = {instance.machine_id for instance in instances if instance.running and not instance.failed}
    machines = props.get("machines") or {}
    incomplete = _list_incomplete(props)
    drift = [
        node for node in props["nodes"] if machines.get(node, {}).get("machine_id") not in usable or node in incomplete
    ]
    numbers = {node: machine["number"] for node, machine in machines.items()}
    drift += [f"instance {instance.number}" for instance in instances if instance.number not in numbers.values()]
    tags = existing.get("tags") or {}
    return drift + ["tags"] * any(tags.get(key) != value for key, value in props["labels"].items())


def without_capacity(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body of a scale set without the number of its machines, which can change in place."""
    return {**body, "sku": {key: value for key, value in body["sku"].items() if key != "capacity"}}


def _remove_outdated(cloud: Cloud, props: Properties, existing: Message) -> None:
    """Delete a scale set that an interrupted run has created from another spec, or those of its instances.

    With upgrade policy Manual, instances stay as they were created when the scale set changes.
    """
    id_ = props["arm_id"]
    if is_outdated(SCALE_SET, without_capacity(props["body"]), existing):
        cloud.delete(SCALE_SET, id_)
    else:
        instances = _list_instances(cloud, id_)
        _delete_instances(cloud, id_, [instance for instance in instances if instance.failed or instance.outdated])


def _list_instances(cloud: Cloud, id_: str) -> tuple[Instance, ...]:
    return read_instances(cloud.list(f"{id_}/virtualMachines", SCALE_SET.api, **{"$expand": "instanceView"}))


def _delete_instances(cloud: Cloud, id_: str, instances: Sequence[Instance]) -> None:
    """Delete instances, by which the capacity of the scale set shrinks as well."""
    _act(cloud, id_, "delete", instances)


def _start_instances(cloud: Cloud, id_: str, instances: Sequence[Instance]) -> None:
    _act(cloud, id_, "start", [instance for instance in instances if not instance.running])


def _act(cloud: Cloud, id_: str, action: str, instances: Sequence[Instance]) -> None:
    if instances:
        body = {"instanceIds": [instance.number for instance in instances]}
        cloud.operate("POST", f"{id_}/{action}", SCALE_SET.api, SCALE_SET.timeout_s, body)


def _read_machines(cloud: Cloud, props: Properties, numbers: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return what the machine of each node is; raise ResourceError if one is missing or has failed."""
    id_, nodes = props["arm_id"], props["nodes"]
    instances = {instance.number: instance for instance in _list_instances(cloud, id_)}
    assigned = assign_nodes(nodes, [instance for instance in instances.values() if not instance.failed], numbers)
    if missing := [node for node in nodes if node not in assigned]:
        what = f"Azure reports success, but {len(missing)} of {len(nodes)} machines are missing or have failed"
        raise ResourceError(props["where"], f"{what} ({', '.join(missing)})", "run it again: it replaces them")
    inside = _read_addresses(cloud, f"{id_}/networkInterfaces")
    outside = _read_addresses(cloud, f"{id_}/publicipaddresses")
    machines = {
        node: {
            "number": number,
            "arm_id": instances[number].arm_id,
            "machine_id": instances[number].machine_id,
            "address": inside.get(number, ""),
            "public_address": outside.get(number, ""),
        }
        for node, number in assigned.items()
    }
    for node, keys in _list_incomplete(props | {"machines": machines}).items():
        what = f"Azure reports success, but {node} has no {keys[0].replace('_', ' ')}"
        raise ResourceError(props["where"], what, "run it again: it asks for it again")
    return machines


def _list_incomplete(props: Properties) -> dict[str, list[str]]:
    """Return the nodes whose machines lack an id or an address that others need, and what they lack."""
    required = ["machine_id", "address"] + ["public_address"] * has_public_address(props["body"])
    machines = (props.get("machines") or {}).items()
    lacking = {node: [key for key in required if not machine.get(key)] for node, machine in machines}
    return {node: keys for node, keys in lacking.items() if keys}


def _read_addresses(cloud: Cloud, path: str) -> Mapping[str, str]:
    """Return addresses by the number of the instance, which is in the id of the interface or public address."""
    addresses = {}
    for entry in cloud.list(path, SCALE_SET_NETWORK_API):
        number = entry["id"].casefold().partition("/virtualmachines/")[2].partition("/")[0]
        addresses[number] = read_address(entry)
    return addresses
