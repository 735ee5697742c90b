"""The network interfaces that keep a security group, a subnet or a VPC from being removed."""

from __future__ import annotations

from botocore.exceptions import BotoCoreError, ClientError

from infra.targets.aws.leftovers.kind import AccountRegion

_FILTERS = {"security group": "group-id", "subnet": "subnet-id", "VPC": "vpc-id"}
_SHOWN = 3


def describe_holders(account: AccountRegion, kind: str, id_: str) -> str:
    """Return which network interfaces use a resource; empty if there are none, or if AWS does not list them."""
    if kind not in _FILTERS:
        return ""
    using = [{"Name": _FILTERS[kind], "Values": [id_]}]
    try:
        items = account.list_items("ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=using)
        holders = [_describe(item["NetworkInterfaceId"], item.get("Description", "")) for item in items]
    except (ClientError, BotoCoreError):
        return ""
    more = f" and {len(holders) - _SHOWN} more" if len(holders) > _SHOWN else ""
    return f"network interface {', '.join(holders[:_SHOWN])}{more}" if holders else ""


def _describe(id_: str, description: str) -> str:
    return f"{id_} ({description})" if description else id_
