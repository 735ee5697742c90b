"""Resources that cost little and are easily forgotten: name zone, parameters, logs, roles, policies, the budget."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from cluster import names as tag_names
from infra.targets.aws import names
from infra.targets.aws.leftovers.kind import (
    AccountRegion,
    ClusterResource,
    ResourceKind,
    compute_usd_per_hour,
    has_cluster_tag,
    read_tags,
)
from infra.targets.aws.node import parameters

_FIXED_RECORDS = ("NS", "SOA")


def _list_zones(account: AccountRegion, cluster: str) -> Iterator[ClusterResource]:
    """Yield also a zone without tags, by its comment: a zone is tagged by a second call, which may fail."""
    route53, domain = account.client("route53"), f"{names.domain(cluster)}."
    for zone in route53.list_hosted_zones_by_name(DNSName=domain)["HostedZones"]:
        if zone["Name"] != domain:
            continue
        id_ = zone["Id"].rpartition("/")[2]
        tag_set = route53.list_tags_for_resource(ResourceType="hostedzone", ResourceId=id_)["ResourceTagSet"]
        tags = read_tags(tag_set.get("Tags"))
        is_untagged = not tags and zone.get("Config", {}).get("Comment") == names.zone_comment(cluster)
        if is_untagged or has_cluster_tag(tags, cluster):
            yield ClusterResource(id_, tags, usd_per_hour=compute_usd_per_hour("route53-zone"))


def _remove_zone(account: AccountRegion, id_: str) -> None:
    route53 = account.client("route53")
    records = account.list_items("route53", "list_resource_record_sets", "ResourceRecordSets", HostedZoneId=id_)
    changes = [
        {"Action": "DELETE", "ResourceRecordSet": record} for record in records if record["Type"] not in _FIXED_RECORDS
    ]
    if changes:
        route53.change_resource_record_sets(HostedZoneId=id_, ChangeBatch={"Changes": changes})
    route53.delete_hosted_zone(Id=id_)


def _list_parameters(account: AccountRegion, cluster: str) -> Iterator[ClusterResource]:
    """Yield all parameters below the cluster's own path: those that nodes wrote have no tags."""
    query = {"Path": parameters.root(cluster), "Recursive": True}
    for parameter in account.list_items("ssm", "get_parameters_by_path", "Parameters", **query):
        yield ClusterResource(parameter["Name"], {}, parameter["LastModifiedDate"].isoformat(timespec="seconds"))


def _remove_parameter(account: AccountRegion, name: str) -> None:
    account.client("ssm").delete_parameter(Name=name)


def _list_log_groups(account: AccountRegion, cluster: str) -> Iterator[ClusterResource]:
    prefix = f"/{names.prefixed(cluster)}/"
    for group in account.list_items("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=prefix):
        created = datetime.fromtimestamp(group["creationTime"] / 1000, UTC).isoformat(timespec="seconds")
        yield ClusterResource(group["logGroupName"], {}, created)


def _remove_log_group(account: AccountRegion, name: str) -> None:
    account.client("logs").delete_log_group(logGroupName=name)


def _list_profiles(account: AccountRegion, cluster: str) -> Iterator[ClusterResource]:
    iam = account.client("iam")
    for profile in account.list_items("iam", "list_instance_profiles", "InstanceProfiles"):
        name = profile["InstanceProfileName"]
        if name.startswith(_name_prefix(cluster)):
            tags = read_tags(iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"].get("Tags"))
            if has_cluster_tag(tags, cluster):
                yield ClusterResource(name, tags, profile["CreateDate"].isoformat(timespec="seconds"))


def _remove_profile(account: AccountRegion, name: str) -> None:
    iam = account.client("iam")
    for role in iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Roles"]:
        iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=role["RoleName"])
    iam.delete_instance_profile(InstanceProfileName=name)


def _list_roles(account: AccountRegion, cluster: str) -> Iterator[ClusterResource]:
    """Yield roles by name and tag: role names of cluster `a-b` begin like those of cluster `a`."""
    for role in account.list_items("iam", "list_roles", "Roles"):
        if role["RoleName"].startswith(_name_prefix(cluster)):
            tags = read_tags(account.client("iam").list_role_tags(RoleName=role["RoleName"])["Tags"])
            if has_cluster_tag(tags, cluster):
                yield ClusterResource(role["RoleName"], tags, role["CreateDate"].isoformat(timespec="seconds"))


def _remove_role(account: AccountRegion, name: str) -> None:
    iam = account.client("iam")
    for policy in iam.list_role_policies(RoleName=name)["PolicyNames"]:
        iam.delete_role_policy(RoleName=name, PolicyName=policy)
    for attached in iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]:
        iam.detach_role_policy(RoleName=name, PolicyArn=attached["PolicyArn"])
    iam.delete_role(RoleName=name)


def _list_policies(account: AccountRegion, cluster: str) -> Iterator[ClusterResource]:
    for policy in account.list_items("iam", "list_policies", "Policies", Scope="Local"):
        if policy["PolicyName"].startswith(_name_prefix(cluster)):
            tags = read_tags(account.client("iam").list_policy_tags(PolicyArn=policy["Arn"])["Tags"])
            if has_cluster_tag(tags, cluster):
                yield ClusterResource(policy["Arn"], tags, policy["CreateDate"].isoformat(timespec="seconds"))


def _remove_policy(account: AccountRegion, arn: str) -> None:
    iam = account.client("iam")
    for version in iam.list_policy_versions(PolicyArn=arn)["Versions"]:
        if not version["IsDefaultVersion"]:
            iam.delete_policy_version(PolicyArn=arn, VersionId=version["VersionId"])
    iam.delete_policy(PolicyArn=arn)


def _list_lifecycle_policies(account: AccountRegion, cluster: str) -> Iterator[ClusterResource]:
    """Yield policies by tag: most clusters have none, so that their operators need no permission to list them."""
    query: dict[str, Any] = {
        "TagFilters": [{"Key": tag_names.CLUSTER, "Values": [cluster]}],
        "ResourceTypeFilters": ["dlm:policy"],
    }
    for mapping in account.list_items("resourcegroupstaggingapi", "get_resources", "ResourceTagMappingList", **query):
        id_ = mapping["ResourceARN"].rpartition("/")[2]
        try:
            account.client("dlm").get_lifecycle_policy(PolicyId=id_)
        except ClientError as error:
            # The tagging service still lists what was deleted an hour ago.
            if error.response["Error"]["Code"] == "ResourceNotFoundException":
                continue
            raise
        yield ClusterResource(id_, read_tags(mapping["Tags"]))


def _remove_lifecycle_policy(account: AccountRegion, id_: str) -> None:
    account.client("dlm").delete_lifecycle_policy(PolicyId=id_)


def _list_budgets(account: AccountRegion, cluster: str) -> Iterator[ClusterResource]:
    try:
        account.client("budgets").describe_budget(AccountId=account.account_id, BudgetName=names.prefixed(cluster))
    except ClientError as error:
        if error.response["Error"]["Code"] == "NotFoundException":
            return
        raise
    yield ClusterResource(names.prefixed(cluster), {})


def _remove_budget(account: AccountRegion, name: str) -> None:
    account.client("budgets").delete_budget(AccountId=account.account_id, BudgetName=name)


def _name_prefix(cluster: str) -> str:
    return f"{names.prefixed(cluster)}-"


ZONE = ResourceKind("private name zone", _list_zones, _remove_zone, ("route53:hostedzone",))
LIFECYCLE_POLICY = ResourceKind("lifecycle policy", _list_lifecycle_policies, _remove_lifecycle_policy, ("dlm:policy",))
PARAMETER = ResourceKind("parameter", _list_parameters, _remove_parameter, ("ssm:parameter",))
LOG_GROUP = ResourceKind("log group", _list_log_groups, _remove_log_group, ("logs:log-group",))
PROFILE = ResourceKind("instance profile", _list_profiles, _remove_profile, ("iam:instance-profile",))
ROLE = ResourceKind("role", _list_roles, _remove_role, ("iam:role",))
POLICY = ResourceKind("policy", _list_policies, _remove_policy, ("iam:policy",))
BUDGET = ResourceKind("budget", _list_budgets, _remove_budget, ("budgets:budget", "budgets:budget-action"))
