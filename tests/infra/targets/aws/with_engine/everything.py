"""Everything there is in the account, whatever its tags: two of these say what came and what stayed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.infra.targets.aws.with_engine.cloud import Cloud

# Call, key of the answer, id of one; those that AWS makes by itself are in both lists.
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


def everything(cloud: Cloud) -> set[str]:
    clients: dict[str, Any] = {}

    def ask(service: str) -> Any:
        return clients.setdefault(service, cloud.client(service))

    return {f"{what} {id_}" for what, id_ in _all(ask, cloud.account)}


def _all(ask: Any, account: str) -> Iterator[tuple[str, str]]:
    for operation, key, id_ in _EC2:
        yield from ((key, one[id_]) for one in _listed(ask("ec2"), operation, key))
    for service, operation, key, id_ in _OTHERS:
        yield from ((f"{service} {key}", one[id_]) for one in _listed(ask(service), operation, key))
    for reservation in _listed(ask("ec2"), "describe_instances", "Reservations"):
        yield from (
            ("Instances", one["InstanceId"]) for one in reservation["Instances"] if one["State"]["Name"] != "terminated"
        )
    for gateway in _listed(ask("ec2"), "describe_nat_gateways", "NatGateways"):
        if gateway["State"] != "deleted":
            yield "NatGateways", gateway["NatGatewayId"]
    for endpoint in _listed(ask("ec2"), "describe_vpc_endpoints", "VpcEndpoints"):
        if endpoint["State"] != "deleted":
            yield "VpcEndpoints", endpoint["VpcEndpointId"]
    for key in _listed(ask("kms"), "list_keys", "Keys"):
        if ask("kms").describe_key(KeyId=key["KeyId"])["KeyMetadata"]["KeyState"] != "PendingDeletion":
            yield "Keys", key["KeyId"]
    for policy in _listed(ask("iam"), "list_policies", "Policies", Scope="Local"):
        yield "Policies", policy["Arn"]
    for budget in _listed(ask("budgets"), "describe_budgets", "Budgets", AccountId=account):
        yield "Budgets", budget["BudgetName"]


def _listed(client: Any, operation: str, key: str, **asked: Any) -> Iterator[Any]:
    paged = client.can_paginate(operation)
    pages = client.get_paginator(operation).paginate(**asked) if paged else [getattr(client, operation)(**asked)]
    for page in pages:
        yield from page.get(key, ())
