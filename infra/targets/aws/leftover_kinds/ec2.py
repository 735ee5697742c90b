"""What EC2 has: machines and their disks, templates, and the network they were in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from cluster import names
from cluster.catalog.prices import instance_price
from infra.targets.aws.cost import FREE_IOPS, FREE_MBS
from infra.targets.aws.leftover_kinds.kind import Account, Found, Kind, Remove, belongs, tags_of, usd_per_hour

Raw = Mapping[str, Any]
Cost = Callable[[Raw, str], float]
"""USD per hour of one in a region."""

# On its way out, and no longer paid for.
_GOING = ("shutting-down", "terminated", "deleting", "deleted")
_TAKE_SEVERAL = ("terminate_instances", "cancel_spot_instance_requests", "delete_flow_logs", "delete_vpc_endpoints")
# What a request for a spot machine can still bring or hold; AWS goes on listing the others for days.
_ASKING = ("open", "active")


def _tagged(account: Account, operation: str, key: str, cluster: str) -> Iterator[tuple[Raw, dict[str, str]]]:
    """The tags are looked at again: what this finds may be removed."""
    named = "Filter" if operation in ("describe_nat_gateways", "describe_flow_logs") else "Filters"
    wanted = {named: [{"Name": f"tag:{names.CLUSTER}", "Values": [cluster]}]}
    for one in account.pages("ec2", operation, key, **wanted):
        tags = tags_of(one.get("Tags") or one.get("TagSet"))
        if belongs(tags, cluster) and str(one.get("State", "")).lower() not in _GOING:
            yield one, tags


def _instances(account: Account, cluster: str) -> Iterator[Found]:
    """Those of Slurm as well: they are in no state file."""
    wanted = [{"Name": f"tag:{names.CLUSTER}", "Values": [cluster]}]
    for reservation in account.pages("ec2", "describe_instances", "Reservations", Filters=wanted):
        for one in reservation["Instances"]:
            tags = tags_of(one.get("Tags"))
            if belongs(tags, cluster) and one["State"]["Name"] not in _GOING:
                price = instance_price(one["InstanceType"], account.region, spot=one.get("InstanceLifecycle") == "spot")
                runs = one["State"]["Name"] in ("pending", "running")
                usd = price.usd if price and runs else 0.0
                yield Found(one["InstanceId"], tags, one["LaunchTime"].isoformat(timespec="seconds"), usd)


def _spot_requests(account: Account, cluster: str) -> Iterator[Found]:
    for one, tags in _tagged(account, "describe_spot_instance_requests", "SpotInstanceRequests", cluster):
        if one["State"] in _ASKING:
            yield Found(one["SpotInstanceRequestId"], tags, one["CreateTime"].isoformat(timespec="seconds"))


def _kind(  # noqa: PLR0913
    name: str, key: str, id_: str, delete: str | Remove, arns: str, *, cost: Cost = lambda *_: 0.0
) -> Kind:
    """EC2 lists what it answers under `key` with the call of that name."""
    operation = "describe" + re.sub("([A-Z])", r"_\1", key).lower()

    def find(account: Account, cluster: str) -> Iterator[Found]:
        for one, tags in _tagged(account, operation, key, cluster):
            # It cannot be removed, and goes with its VPC.
            if one.get("GroupName") == "default" and key == "SecurityGroups":
                continue
            made = next((one[word] for word in ("CreateTime", "CreationTimestamp", "CreationTime") if word in one), "")
            created = made.isoformat(timespec="seconds") if isinstance(made, datetime) else ""
            within = one.get("VpcId", "") if key == "SecurityGroups" else ""
            yield Found(one[id_], tags, created, cost(one, account.region), within=within)

    return Kind(name, find, delete if callable(delete) else _delete(delete, id_), tuple(arns.split()))


def _delete(operation: str, parameter: str) -> Remove:
    def remove(account: Account, id_: str) -> None:
        named = {f"{parameter}s": [id_]} if operation in _TAKE_SEVERAL else {parameter: id_}
        getattr(account.ask("ec2"), operation)(**named)

    return remove


def _volume_usd(one: Raw, _region: str) -> float:
    usd = usd_per_hour("ebs-gp3", one["Size"])
    usd += usd_per_hour("ebs-gp3-iops", max(0, (one.get("Iops") or 0) - FREE_IOPS))
    return usd + usd_per_hour("ebs-gp3-throughput", max(0, (one.get("Throughput") or 0) - FREE_MBS))


def _endpoint_usd(one: Raw, _region: str) -> float:
    interface = one["VpcEndpointType"] == "Interface"
    return usd_per_hour("interface-endpoint", len(one.get("SubnetIds") or ())) if interface else 0.0


def _remove_security_group(account: Account, id_: str) -> None:
    """Groups name each other: rules go first, or none of them could be the first to go."""
    ec2 = account.ask("ec2")
    mine = [{"Name": "group-id", "Values": [id_]}]
    rules = list(account.pages("ec2", "describe_security_group_rules", "SecurityGroupRules", Filters=mine))
    for outward, revoke in ((True, ec2.revoke_security_group_egress), (False, ec2.revoke_security_group_ingress)):
        ids = [rule["SecurityGroupRuleId"] for rule in rules if rule["IsEgress"] == outward]
        if ids:
            revoke(GroupId=id_, SecurityGroupRuleIds=ids)
    ec2.delete_security_group(GroupId=id_)


def _remove_route_table(account: Account, id_: str) -> None:
    ec2 = account.ask("ec2")
    (found,) = ec2.describe_route_tables(RouteTableIds=[id_])["RouteTables"]
    for one in found["Associations"]:
        if not one.get("Main"):
            ec2.disassociate_route_table(AssociationId=one["RouteTableAssociationId"])
    ec2.delete_route_table(RouteTableId=id_)


def _remove_internet_gateway(account: Account, id_: str) -> None:
    ec2 = account.ask("ec2")
    (found,) = ec2.describe_internet_gateways(InternetGatewayIds=[id_])["InternetGateways"]
    for attached in found["Attachments"]:
        ec2.detach_internet_gateway(InternetGatewayId=id_, VpcId=attached["VpcId"])
    ec2.delete_internet_gateway(InternetGatewayId=id_)


INSTANCE = Kind("instance", _instances, _delete("terminate_instances", "InstanceId"), ("ec2:instance",))
SPOT_REQUEST = Kind(
    "spot request",
    _spot_requests,
    _delete("cancel_spot_instance_requests", "SpotInstanceRequestId"),
    ("ec2:spot-instances-request", "ec2:spot-instance-request"),
)
TEMPLATE = _kind(
    "launch template", "LaunchTemplates", "LaunchTemplateId", "delete_launch_template", "ec2:launch-template"
)
PLACEMENT = _kind("placement group", "PlacementGroups", "GroupName", "delete_placement_group", "ec2:placement-group")
VOLUME = _kind("volume", "Volumes", "VolumeId", "delete_volume", "ec2:volume", cost=_volume_usd)
# The tagging service and EC2 have two words for them.
FLOW_LOG = _kind("flow log", "FlowLogs", "FlowLogId", "delete_flow_logs", "ec2:vpc-flow-log ec2:flow-logs")
ENDPOINT = _kind(
    "VPC endpoint", "VpcEndpoints", "VpcEndpointId", "delete_vpc_endpoints", "ec2:vpc-endpoint", cost=_endpoint_usd
)
NAT = _kind(
    "NAT gateway",
    "NatGateways",
    "NatGatewayId",
    "delete_nat_gateway",
    "ec2:natgateway",
    cost=lambda *_: usd_per_hour("nat-gateway"),
)
ADDRESS = _kind(
    "public address",
    "Addresses",
    "AllocationId",
    "release_address",
    "ec2:elastic-ip",
    cost=lambda *_: usd_per_hour("public-ipv4"),
)
INTERFACE = _kind(
    "network interface",
    "NetworkInterfaces",
    "NetworkInterfaceId",
    "delete_network_interface",
    "ec2:network-interface",
)
SECURITY_GROUP = _kind("security group", "SecurityGroups", "GroupId", _remove_security_group, "ec2:security-group")
SUBNET = _kind("subnet", "Subnets", "SubnetId", "delete_subnet", "ec2:subnet")
ROUTE_TABLE = _kind("route table", "RouteTables", "RouteTableId", _remove_route_table, "ec2:route-table")
INTERNET_GATEWAY = _kind(
    "internet gateway", "InternetGateways", "InternetGatewayId", _remove_internet_gateway, "ec2:internet-gateway"
)
VPC = _kind("VPC", "Vpcs", "VpcId", "delete_vpc", "ec2:vpc")

# In the order in which they can be removed; filesystems have interfaces in subnets and go between the two.
MACHINES = (INSTANCE, SPOT_REQUEST, TEMPLATE, PLACEMENT, VOLUME)
NETWORK = (
    FLOW_LOG,
    ENDPOINT,
    NAT,
    ADDRESS,
    INTERFACE,
    SECURITY_GROUP,
    SUBNET,
    ROUTE_TABLE,
    INTERNET_GATEWAY,
    VPC,
)
