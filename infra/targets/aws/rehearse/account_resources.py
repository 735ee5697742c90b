"""All resources of an account, whatever their tags: comparing two listings shows what was added or left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

# Call, key in the response, key of the id. Resources that AWS creates by itself are in both listings.
_EC2 = (
    ("describe_volumes", "Volumes", "VolumeId"),
    ("describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId"),
    ("describe_addresses", "Addresses", "AllocationId"),
    ("describe_security_groups", "SecurityGroups", "GroupId"),
    ("describe_subnets", "Subnets", "SubnetId"),
    ("describe_route_tables", "RouteTables", "RouteTableId"),
    ("describe_internet_gateways", "InternetGateways", "InternetGatewayId"),
    ("describe_vpcs", "Vpcs", "VpcId"),
    ("describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"),
    ("describe_placement_groups", "PlacementGroups", "GroupName"),
    ("describe_flow_logs", "FlowLogs", "FlowLogId"),
)
_OTHERS = (
    ("fsx", "describe_file_systems", "FileSystems", "FileSystemId"),
    ("efs", "describe_file_systems", "FileSystems", "FileSystemId"),
    ("route53", "list_hosted_zones", "HostedZones", "Id"),
    ("logs", "describe_log_groups", "logGroups", "logGroupName"),
    ("iam", "list_roles", "Roles", "RoleName"),
    ("iam", "list_instance_profiles", "InstanceProfiles", "InstanceProfileName"),
    ("s3", "list_buckets", "Buckets", "Name"),
    ("ssm", "describe_parameters", "Parameters", "Name"),
    ("kms", "list_aliases", "Aliases", "AliasName"),
)


class ReachableAccount(Protocol):
    """An account and the clients of its services."""

    @property
    def account(self) -> str:
        """Number of the account."""

    @property
    def client(self) -> Callable[[str], Any]:
        """Function that returns the client of a service."""


def list_resources(cloud: ReachableAccount) -> set[str]:
    """Return kind and id of every resource in the account."""
    clients: dict[str, Any] = {}

    def client_of(service: str) -> Any:
        if service not in clients:
            clients[service] = cloud.client(service)
        return clients[service]

    return {f"{what} {id_}" for what, id_ in _list_all(client_of, cloud.account)}


def _list_all(client_of: Callable[[str], Any], account: str) -> Iterator[tuple[str, str]]:
    for operation, key, id_ in _EC2:
        yield from ((key, row[id_]) for row in _list_pages(client_of("ec2"), operation, key))
    for service, operation, key, id_ in _OTHERS:
        yield from ((f"{service} {key}", row[id_]) for row in _list_pages(client_of(service), operation, key))
    for reservation in _list_pages(client_of("ec2"), "describe_instances", "Reservations"):
        yield from (
            ("Instances", row["InstanceId"]) for row in reservation["Instances"] if row["State"]["Name"] != "terminated"
        )
    yield from _list_own(client_of("ec2"))
    for gateway in _list_pages(client_of("ec2"), "describe_nat_gateways", "NatGateways"):
        if gateway["State"] != "deleted":
            yield "NatGateways", gateway["NatGatewayId"]
    for endpoint in _list_pages(client_of("ec2"), "describe_vpc_endpoints", "VpcEndpoints"):
        if endpoint["State"] != "deleted":
            yield "VpcEndpoints", endpoint["VpcEndpointId"]
    yield from list_own_keys(client_of("kms"))
    for policy in _list_pages(client_of("iam"), "list_policies", "Policies", Scope="Local"):
        yield "Policies", policy["Arn"]
    for budget in _list_pages(client_of("budgets"), "describe_budgets", "Budgets", AccountId=account):
        yield "Budgets", budget["BudgetName"]


def _list_own(ec2: Any) -> Iterator[tuple[str, str]]:
    """Yield images and snapshots of the account: AWS lists those of everyone else too."""
    for image in _list_pages(ec2, "describe_images", "Images", Owners=["self"]):
        yield "Images", image["ImageId"]
    for snapshot in _list_pages(ec2, "describe_snapshots", "Snapshots", OwnerIds=["self"]):
        yield "Snapshots", snapshot["SnapshotId"]


def list_own_keys(kms: Any) -> Iterator[tuple[str, str]]:
    """Yield keys of the account, without those that AWS creates for a service when it first needs one."""
    aliases = _list_pages(kms, "list_aliases", "Aliases")
    managed = {alias.get("TargetKeyId") for alias in aliases if alias["AliasName"].startswith("alias/aws/")}
    for key in _list_pages(kms, "list_keys", "Keys"):
        is_deleted = kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"]["KeyState"] == "PendingDeletion"
        if key["KeyId"] not in managed and not is_deleted:
            yield "Keys", key["KeyId"]


def _list_pages(client: Any, operation: str, key: str, **parameters: Any) -> Iterator[Any]:
    paged = client.can_paginate(operation)
    pages = (
        client.get_paginator(operation).paginate(**parameters) if paged else [getattr(client, operation)(**parameters)]
    )
    for page in pages:
        yield from page.get(key, ())
