"""Everything there is in the account, whatever its tags: two of these say what came and what stayed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.moto_server import ACCOUNT, Moto

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


def everything(server: Moto) -> set[str]:
    clients: dict[str, Any] = {}

    def ask(service: str) -> Any:
        return clients.setdefault(service, server.client(service))

    return {f"{what} {id_}" for what, id_ in _all(ask)}


def _all(ask: Any) -> Iterator[tuple[str, str]]:
    for operation, key, id_ in _EC2:
        yield from ((key, one[id_]) for one in getattr(ask("ec2"), operation)()[key])
    for service, operation, key, id_ in _OTHERS:
        client = ask(service)
        pages = (
            client.get_paginator(operation).paginate()
            if client.can_paginate(operation)
            else [getattr(client, operation)()]
        )
        yield from ((f"{service} {key}", one[id_]) for page in pages for one in page[key])
    for reservation in ask("ec2").describe_instances()["Reservations"]:
        yield from (
            ("Instances", one["InstanceId"]) for one in reservation["Instances"] if one["State"]["Name"] != "terminated"
        )
    for gateway in ask("ec2").describe_nat_gateways()["NatGateways"]:
        if gateway["State"] != "deleted":
            yield "NatGateways", gateway["NatGatewayId"]
    for endpoint in ask("ec2").describe_vpc_endpoints()["VpcEndpoints"]:
        if endpoint["State"] != "deleted":
            yield "VpcEndpoints", endpoint["VpcEndpointId"]
    for key in ask("kms").list_keys()["Keys"]:
        if ask("kms").describe_key(KeyId=key["KeyId"])["KeyMetadata"]["KeyState"] != "PendingDeletion":
            yield "Keys", key["KeyId"]
    for policy in ask("iam").list_policies(Scope="Local")["Policies"]:
        yield "Policies", policy["Arn"]
    for budget in ask("budgets").describe_budgets(AccountId=ACCOUNT).get("Budgets", []):
        yield "Budgets", budget["BudgetName"]
