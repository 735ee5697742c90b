"""EC2 resources of a cluster: instances, disks, launch templates, and the network."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from cluster import names
from cluster.catalog.prices import instance_price
from infra.targets.aws.cost import FREE_IOPS, FREE_MBS
from infra.targets.aws.leftovers.kind import (
    AccountRegion,
    ClusterResource,
    RemoveResource,
    ResourceKind,
    compute_usd_per_hour,
    has_cluster_tag,
    read_tags,
)

Item = Mapping[str, Any]
Cost = Callable[[Item, str], float]
"""Returns the USD per hour of an item in a region."""

_CREATION_KEYS = ("CreateTime", "CreationTimestamp", "CreationTime")
# AWS no longer bills resources in these states.
_ENDING_STATES = ("shutting-down", "terminated", "deleting", "deleted")
# These calls take a list of ids.
_BATCH_OPERATIONS = ("terminate_instances", "cancel_spot_instance_requests", "delete_flow_logs", "delete_vpc_endpoints")
_OWNERS = {"describe_images": "Owners", "describe_snapshots": "OwnerIds"}
# A spot request in another state launches nothing more; AWS keeps listing it for days.
_OPEN_REQUEST_STATES = ("open", "active")


def _list_tagged(
    account: AccountRegion, operation: str, key: str, cluster: str
) -> Iterator[tuple[Item, dict[str, str]]]:
    """Yield items with their tags, which are checked again because the caller may remove the items."""
    filter_key = "Filter" if operation in ("describe_nat_gateways", "describe_flow_logs") else "Filters"
    filters: dict[str, Any] = {filter_key: [{"Name": f"tag:{names.CLUSTER}", "Values": [cluster]}]}
    # Without an owner, EC2 would search every public image and snapshot of the region.
    filters |= {_OWNERS[operation]: ["self"]} if operation in _OWNERS else {}
    for item in account.list_items("ec2", operation, key, **filters):
        tags = read_tags(item.get("Tags") or item.get("TagSet"))
        if has_cluster_tag(tags, cluster) and str(item.get("State", "")).lower() not in _ENDING_STATES:
            yield item, tags


def _list_instances(account: AccountRegion, cluster: str) -> Iterator[ClusterResource]:
    """Yield all instances, including those that Slurm launched, which are in no state file."""
    filters = [{"Name": f"tag:{names.CLUSTER}", "Values": [cluster]}]
    for reservation in account.list_items("ec2", "describe_instances", "Reservations", Filters=filters):
        for item in reservation["Instances"]:
            tags = read_tags(item.get("Tags"))
            if has_cluster_tag(tags, cluster) and item["State"]["Name"] not in _ENDING_STATES:
                price = instance_price(
                    item["InstanceType"], account.region, spot=item.get("InstanceLifecycle") == "spot"
                )
                runs = item["State"]["Name"] in ("pending", "running")
                usd = price.usd if price and runs else 0.0
                yield ClusterResource(item["InstanceId"], tags, item["LaunchTime"].isoformat(timespec="seconds"), usd)


def _list_spot_requests(account: AccountRegion, cluster: str) -> Iterator[ClusterResource]:
    for item, tags in _list_tagged(account, "describe_spot_instance_requests", "SpotInstanceRequests", cluster):
        if item["State"] in _OPEN_REQUEST_STATES:
            yield ClusterResource(item["SpotInstanceRequestId"], tags, item["CreateTime"].isoformat(timespec="seconds"))


def _create_kind(  # noqa: PLR0913
    name: str, key: str, id_: str, delete: str | RemoveResource, arns: str, *, cost: Cost = lambda *_: 0.0
) -> ResourceKind:
    """Return a kind whose listing call is named after `key`, the key of the items in the response."""
    operation = "describe" + re.sub("([A-Z])", r"_\1", key).lower()

    def find(account: AccountRegion, cluster: str) -> Iterator[ClusterResource]:
        for item, tags in _list_tagged(account, operation, key, cluster):
            # AWS removes the default group with its VPC and refuses to remove it alone.
            if item.get("GroupName") == "default" and key == "SecurityGroups":
                continue
            created_at = next((item[name] for name in _CREATION_KEYS if name in item), None)
            created = created_at.isoformat(timespec="seconds") if isinstance(created_at, datetime) else ""
            parent = item.get("VpcId", "") if key == "SecurityGroups" else ""
            # A snapshot that is kept can be read only as long as its key exists.
            keys = frozenset((item["KmsKeyId"].rpartition("/")[2],)) if item.get("KmsKeyId") else frozenset[str]()
            requires = keys if key == "Snapshots" else frozenset[str]()
            yield ClusterResource(item[id_], tags, created, cost(item, account.region), requires, parent)

    return ResourceKind(name, find, delete if callable(delete) else _create_remove(delete, id_), tuple(arns.split()))


def _create_remove(operation: str, parameter: str) -> RemoveResource:
    def remove(account: AccountRegion, id_: str) -> None:
        params = {f"{parameter}s": [id_]} if operation in _BATCH_OPERATIONS else {parameter: id_}
        getattr(account.client("ec2"), operation)(**params)

    return remove


def _compute_volume_usd(item: Item, _region: str) -> float:
    usd = compute_usd_per_hour("ebs-gp3", item["Size"])
    usd += compute_usd_per_hour("ebs-gp3-iops", max(0, (item.get("Iops") or 0) - FREE_IOPS))
    return usd + compute_usd_per_hour("ebs-gp3-throughput", max(0, (item.get("Throughput") or 0) - FREE_MBS))


def _compute_endpoint_usd(item: Item, _region: str) -> float:
    interface = item["VpcEndpointType"] == "Interface"
    return compute_usd_per_hour("interface-endpoint", len(item.get("SubnetIds") or ())) if interface else 0.0


def _remove_security_group(account: AccountRegion, id_: str) -> None:
    """Remove its rules and those by which other groups of the cluster refer to it: AWS refuses while there are any."""
    ec2 = account.client("ec2")
    (group,) = ec2.describe_security_groups(GroupIds=[id_])["SecurityGroups"]
    cluster = read_tags(group.get("Tags")).get(names.CLUSTER, "")
    groups = [
        other["GroupId"] for other, _ in _list_tagged(account, "describe_security_groups", "SecurityGroups", cluster)
    ]
    filters = [{"Name": "group-id", "Values": groups}]
    rules: dict[tuple[str, bool], list[str]] = {}
    for rule in account.list_items("ec2", "describe_security_group_rules", "SecurityGroupRules", Filters=filters):
        if id_ in (rule["GroupId"], rule.get("ReferencedGroupInfo", {}).get("GroupId")):
            rules.setdefault((rule["GroupId"], rule["IsEgress"]), []).append(rule["SecurityGroupRuleId"])
    for (owner, outward), ids in rules.items():
        revoke = ec2.revoke_security_group_egress if outward else ec2.revoke_security_group_ingress
        revoke(GroupId=owner, SecurityGroupRuleIds=ids)
    ec2.delete_security_group(GroupId=id_)


def _remove_route_table(account: AccountRegion, id_: str) -> None:
    ec2 = account.client("ec2")
    (table,) = ec2.describe_route_tables(RouteTableIds=[id_])["RouteTables"]
    for association in table["Associations"]:
        if not association.get("Main"):
            ec2.disassociate_route_table(AssociationId=association["RouteTableAssociationId"])
    ec2.delete_route_table(RouteTableId=id_)


def _remove_internet_gateway(account: AccountRegion, id_: str) -> None:
    ec2 = account.client("ec2")
    (gateway,) = ec2.describe_internet_gateways(InternetGatewayIds=[id_])["InternetGateways"]
    for attached in gateway["Attachments"]:
        ec2.detach_internet_gateway(InternetGatewayId=id_, VpcId=attached["VpcId"])
    ec2.delete_internet_gateway(InternetGatewayId=id_)


INSTANCE = ResourceKind(
    "instance", _list_instances, _create_remove("terminate_instances", "InstanceId"), ("ec2:instance",)
)
SPOT_REQUEST = ResourceKind(
    "spot request",
    _list_spot_requests,
    _create_remove("cancel_spot_instance_requests", "SpotInstanceRequestId"),
    ("ec2:spot-instances-request", "ec2:spot-instance-request"),
)
TEMPLATE = _create_kind(
    "launch template", "LaunchTemplates", "LaunchTemplateId", "delete_launch_template", "ec2:launch-template"
)
PLACEMENT = _create_kind(
    "placement group", "PlacementGroups", "GroupName", "delete_placement_group", "ec2:placement-group"
)
VOLUME = _create_kind("volume", "Volumes", "VolumeId", "delete_volume", "ec2:volume", cost=_compute_volume_usd)
# Images that passed their test have the tag that keeps them: they serve the next cluster too.
IMAGE = _create_kind("machine image", "Images", "ImageId", "deregister_image", "ec2:image")
SNAPSHOT = _create_kind(
    "snapshot",
    "Snapshots",
    "SnapshotId",
    "delete_snapshot",
    "ec2:snapshot",
    cost=lambda item, _region: compute_usd_per_hour("ebs-snapshot", item["VolumeSize"]),
)
# The tagging service and EC2 use different type names.
FLOW_LOG = _create_kind("flow log", "FlowLogs", "FlowLogId", "delete_flow_logs", "ec2:vpc-flow-log ec2:flow-logs")
ENDPOINT = _create_kind(
    "VPC endpoint",
    "VpcEndpoints",
    "VpcEndpointId",
    "delete_vpc_endpoints",
    "ec2:vpc-endpoint",
    cost=_compute_endpoint_usd,
)
NAT = _create_kind(
    "NAT gateway",
    "NatGateways",
    "NatGatewayId",
    "delete_nat_gateway",
    "ec2:natgateway",
    cost=lambda *_: compute_usd_per_hour("nat-gateway"),
)
ADDRESS = _create_kind(
    "public address",
    "Addresses",
    "AllocationId",
    "release_address",
    "ec2:elastic-ip",
    cost=lambda *_: compute_usd_per_hour("public-ipv4"),
)
INTERFACE = _create_kind(
    "network interface",
    "NetworkInterfaces",
    "NetworkInterfaceId",
    "delete_network_interface",
    "ec2:network-interface",
)
SECURITY_GROUP = _create_kind(
    "security group", "SecurityGroups", "GroupId", _remove_security_group, "ec2:security-group"
)
SUBNET = _create_kind("subnet", "Subnets", "SubnetId", "delete_subnet", "ec2:subnet")
ROUTE_TABLE = _create_kind("route table", "RouteTables", "RouteTableId", _remove_route_table, "ec2:route-table")
INTERNET_GATEWAY = _create_kind(
    "internet gateway", "InternetGateways", "InternetGatewayId", _remove_internet_gateway, "ec2:internet-gateway"
)
VPC = _create_kind("VPC", "Vpcs", "VpcId", "delete_vpc", "ec2:vpc")

# In the order in which they can be removed; filesystems, which have interfaces in subnets, go between the two.
MACHINES = (INSTANCE, SPOT_REQUEST, TEMPLATE, PLACEMENT, VOLUME, IMAGE, SNAPSHOT)
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
