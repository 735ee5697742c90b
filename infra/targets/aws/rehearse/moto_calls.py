"""AWS calls of a GPU cluster that moto lacks: placement groups, reservations, topology, Run Command, policies.

Each call stores the request and returns it in AWS's format, nothing more.
"""

from __future__ import annotations

import inspect
import uuid
from functools import cache
from typing import Any

from moto import backends
from moto.core import responses
from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.amis import AMIS, Ami, AmiBackend
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.responses import EC2Response
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, get_prefix
from moto.iam.exceptions import DeleteConflictException
from moto.iam.models import IAMBackend
from moto.kms import models as kms
from moto.ssm.models import Command, ssm_backends

from infra.targets.aws.rehearse import moto_dlm

Records = dict[str, dict[str, Any]]


def create_placement_group(self: EC2Response) -> ActionResult:
    """Create a placement group."""
    name = self._get_param("GroupName")
    groups = _stored(self, "placement_groups")
    if name in groups:
        raise EC2ClientError("InvalidPlacementGroup.Duplicate", f"The placement group '{name}' already exists")
    groups[name] = {
        "GroupName": name,
        "GroupId": f"pg-{uuid.uuid4().hex[:17]}",
        "Strategy": self._get_param("Strategy"),
        "State": "available",
        "GroupArn": f"arn:aws:ec2:{self.region}:{self.current_account}:placement-group/{name}",
        "Tags": _tags(self, "placement-group"),
    }
    return ActionResult({"PlacementGroup": groups[name]})


def describe_placement_groups(self: EC2Response) -> ActionResult:
    """Return the placement groups with the given names, or all."""
    groups, names = _stored(self, "placement_groups"), self._get_param("GroupNames", [])
    for name in names:
        _require_group(groups, name)
    return ActionResult({"PlacementGroups": [g for name, g in groups.items() if not names or name in names]})


def delete_placement_group(self: EC2Response) -> ActionResult:
    """Delete a placement group."""
    name = self._get_param("GroupName")
    _require_group(_stored(self, "placement_groups"), name)
    del _stored(self, "placement_groups")[name]
    return ActionResult({})


def create_capacity_reservation(self: EC2Response) -> ActionResult:
    """Create a capacity reservation."""
    count = int(self._get_param("InstanceCount"))
    reservation = {
        "CapacityReservationId": f"cr-{uuid.uuid4().hex[:17]}",
        "InstanceType": self._get_param("InstanceType"),
        "InstancePlatform": self._get_param("InstancePlatform"),
        "AvailabilityZone": self._get_param("AvailabilityZone"),
        "InstanceMatchCriteria": self._get_param("InstanceMatchCriteria") or "open",
        "TotalInstanceCount": count,
        "AvailableInstanceCount": count,
        "State": "active",
        "Tags": _tags(self, "capacity-reservation"),
    }
    _stored(self, "capacity_reservations")[reservation["CapacityReservationId"]] = reservation
    return ActionResult({"CapacityReservation": reservation})


def describe_capacity_reservations(self: EC2Response) -> ActionResult:
    """Return the capacity reservations with the given ids, or all."""
    reservations, ids = _stored(self, "capacity_reservations"), self._get_param("CapacityReservationIds", [])
    for name in ids:
        if name not in reservations:
            raise EC2ClientError("InvalidCapacityReservationId.NotFound", f"The reservation '{name}' does not exist")
    return ActionResult({"CapacityReservations": [r for key, r in reservations.items() if not ids or key in ids]})


def describe_instance_topology(self: EC2Response) -> ActionResult:
    """Return the network nodes of running instances: those set with `Moto.place`, else a path that ends uniquely."""
    ids = self._get_param("InstanceIds", [])
    places = _stored(self, "places")
    instances = []
    for reservation in self.ec2_backend.describe_instances(filters=self._filters_from_querystring()):
        for instance in reservation.instances:
            if instance.state != "running" or (ids and instance.id not in ids):
                continue
            nodes = places.get(instance.id, {}).get("nodes", ["nn-top", "nn-mid", f"nn-{instance.id[-4:]}"])
            zone = instance.placement
            instances.append({"InstanceId": instance.id, "NetworkNodes": nodes, "AvailabilityZone": str(zone)})
    return ActionResult({"Instances": instances})


_invocation = Command.invocation_response


def invocation_response(self: Command, instance_id: str, plugin_name: str) -> dict[str, Any]:
    """Return the answer that a test set with `Moto.answer`, because moto itself always returns Success."""
    script = self.parameters["commands"][0]
    answers: Records = ssm_backends[self.account_id][self.backend_region].__dict__.get("muster_answers", {})
    answer = next((answer for text, answer in answers.items() if text in script), {})
    return {**_invocation(self, instance_id, plugin_name), **answer}


_delete_policy = IAMBackend.delete_policy


def delete_policy(self: IAMBackend, policy_arn: str) -> None:
    """Refuse to delete a policy that is attached or has older versions, as AWS does."""
    policy = self.get_policy(policy_arn)
    if any(policy_arn in role.managed_policies for role in self.roles.values()):
        raise DeleteConflictException("Cannot delete a policy attached to entities.")
    if len(policy.versions) > 1:
        raise DeleteConflictException("This policy has more than one version.")
    _delete_policy(self, policy_arn)


def load_few_images(self: AmiBackend) -> None:
    """Load moto's 44 general images: loading and listing the region's 1,250 too takes longer than most tests."""
    self.amis = {image["ami_id"]: Ami(self, owner_alias="amazon", **image) for image in AMIS}


def get_tags(self: TaggedEC2Resource) -> list[dict[str, str]]:
    """Return the tags of a resource of EC2: moto searches those of all resources, for each that a filter compares."""
    tags = self.ec2_backend.tags.get(self.id) or {}
    kind = EC2_PREFIX_TO_RESOURCE.get(get_prefix(self.id), "") if tags else ""
    return [{"resource_id": self.id, "key": key, "value": value, "resource_type": kind} for key, value in tags.items()]


_generate_private_key = cache(kms.generate_private_key)


class MethodNames:
    """The names of a class's methods: moto lists all 700 of EC2 for each request, to look up one."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def __contains__(self, name: str) -> bool:
        return inspect.isfunction(getattr(self.cls, name, None))


def apply() -> None:
    """Add the missing calls to moto."""
    AmiBackend._load_amis = load_few_images
    TaggedEC2Resource.get_tags = get_tags
    # moto reads its own folder twice for each request.
    modules = frozenset(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: modules
    responses.method_names_from_class = MethodNames
    # moto generates an RSA key for each key of KMS, which takes 0.1 s, although keys of disks and buckets use none.
    kms.generate_private_key = _generate_private_key
    Command.invocation_response = invocation_response
    IAMBackend.delete_policy = delete_policy
    moto_dlm.apply()
    for function in (
        create_placement_group,
        describe_placement_groups,
        delete_placement_group,
        create_capacity_reservation,
        describe_capacity_reservations,
        describe_instance_topology,
    ):
        if not hasattr(EC2Response, function.__name__):
            setattr(EC2Response, function.__name__, function)


def _stored(response: EC2Response, kind: str) -> Records:
    records: Records = response.ec2_backend.__dict__.setdefault(f"muster_{kind}", {})
    return records


def _require_group(groups: Records, name: str) -> None:
    if name not in groups:
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown")


def _tags(response: EC2Response, kind: str) -> list[dict[str, str]]:
    tags = response._parse_tag_specification(kind).get(kind, {})
    return [{"Key": key, "Value": value} for key, value in tags.items()]
