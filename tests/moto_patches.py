"""What a GPU cluster asks of AWS and moto lacks: placement groups, capacity reservations, where an instance stands,
what a machine answers to Run Command, which policies can go.

They keep what was sent and hand it back in AWS's shape, nothing more."""

from __future__ import annotations

import uuid
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.responses import EC2Response
from moto.iam.exceptions import DeleteConflictException
from moto.iam.models import IAMBackend
from moto.ssm.models import Command, ssm_backends

Kept = dict[str, dict[str, Any]]


def create_placement_group(self: EC2Response) -> ActionResult:
    name = self._get_param("GroupName")
    groups = _kept(self, "placement_groups")
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
    groups, wanted = _kept(self, "placement_groups"), self._get_param("GroupNames", [])
    for name in wanted:
        _known(groups, name)
    return ActionResult({"PlacementGroups": [g for name, g in groups.items() if not wanted or name in wanted]})


def delete_placement_group(self: EC2Response) -> ActionResult:
    name = self._get_param("GroupName")
    _known(_kept(self, "placement_groups"), name)
    del _kept(self, "placement_groups")[name]
    return ActionResult({})


def create_capacity_reservation(self: EC2Response) -> ActionResult:
    count = int(self._get_param("InstanceCount"))
    made = {
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
    _kept(self, "capacity_reservations")[made["CapacityReservationId"]] = made
    return ActionResult({"CapacityReservation": made})


def describe_capacity_reservations(self: EC2Response) -> ActionResult:
    kept, wanted = _kept(self, "capacity_reservations"), self._get_param("CapacityReservationIds", [])
    for one in wanted:
        if one not in kept:
            raise EC2ClientError("InvalidCapacityReservationId.NotFound", f"The reservation '{one}' does not exist")
    return ActionResult({"CapacityReservations": [r for key, r in kept.items() if not wanted or key in wanted]})


def describe_instance_topology(self: EC2Response) -> ActionResult:
    """Only of running instances, as AWS has it; an instance's place is what `place` said, or one of its own."""
    wanted = self._get_param("InstanceIds", [])
    places = _kept(self, "places")
    found = []
    for reservation in self.ec2_backend.describe_instances(filters=self._filters_from_querystring()):
        for instance in reservation.instances:
            if instance.state != "running" or (wanted and instance.id not in wanted):
                continue
            nodes = places.get(instance.id, {}).get("nodes", ["nn-top", "nn-mid", f"nn-{instance.id[-4:]}"])
            zone = instance.placement
            found.append({"InstanceId": instance.id, "NetworkNodes": nodes, "AvailabilityZone": str(zone)})
    return ActionResult({"Instances": found})


_invocation = Command.invocation_response


def answered(self: Command, instance_id: str, plugin_name: str) -> dict[str, Any]:
    """As a test said that a script with these words in it ends; moto itself says Success and nothing else."""
    script = self.parameters["commands"][0]
    kept: Kept = ssm_backends[self.account_id][self.backend_region].__dict__.get("muster_answers", {})
    said = next((answer for words, answer in kept.items() if words in script), {})
    return {**_invocation(self, instance_id, plugin_name), **said}


_delete_policy = IAMBackend.delete_policy


def delete_policy(self: IAMBackend, policy_arn: str) -> None:
    """AWS removes none that somebody has, or that has older versions."""
    policy = self.get_policy(policy_arn)
    if any(policy_arn in role.managed_policies for role in self.roles.values()):
        raise DeleteConflictException("Cannot delete a policy attached to entities.")
    if len(policy.versions) > 1:
        raise DeleteConflictException("This policy has more than one version.")
    _delete_policy(self, policy_arn)


def apply() -> None:
    Command.invocation_response = answered  # type: ignore[method-assign]
    IAMBackend.delete_policy = delete_policy  # type: ignore[method-assign]
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


def _kept(response: EC2Response, what: str) -> Kept:
    kept: Kept = response.ec2_backend.__dict__.setdefault(f"muster_{what}", {})
    return kept


def _known(groups: Kept, name: str) -> None:
    if name not in groups:
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown")


def _tags(response: EC2Response, kind: str) -> list[dict[str, str]]:
    tags = response._parse_tag_specification(kind).get(kind, {})
    return [{"Key": key, "Value": value} for key, value in tags.items()]
