"""What costs little and is easily forgotten: name zone, parameters, logs, roles, policies, the budget."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from botocore.exceptions import ClientError

from infra.targets.aws import names
from infra.targets.aws.leftover_kinds.kind import Account, Found, Kind, belongs, tags_of, usd_per_hour
from infra.targets.aws.node import parameters

_FIXED_RECORDS = ("NS", "SOA")


def _zones(account: Account, cluster: str) -> Iterator[Found]:
    route53, domain = account.ask("route53"), f"{names.domain(cluster)}."
    for one in route53.list_hosted_zones_by_name(DNSName=domain)["HostedZones"]:
        if one["Name"] != domain:
            continue
        id_ = one["Id"].rpartition("/")[2]
        said = route53.list_tags_for_resource(ResourceType="hostedzone", ResourceId=id_)["ResourceTagSet"]
        found = tags_of(said.get("Tags"))
        if belongs(found, cluster):
            yield Found(id_, found, usd_per_hour=usd_per_hour("route53-zone"))


def _remove_zone(account: Account, id_: str) -> None:
    route53 = account.ask("route53")
    records = account.pages("route53", "list_resource_record_sets", "ResourceRecordSets", HostedZoneId=id_)
    changes = [{"Action": "DELETE", "ResourceRecordSet": one} for one in records if one["Type"] not in _FIXED_RECORDS]
    if changes:
        route53.change_resource_record_sets(HostedZoneId=id_, ChangeBatch={"Changes": changes})
    route53.delete_hosted_zone(Id=id_)


def _parameters(account: Account, cluster: str) -> Iterator[Found]:
    """Also those that nodes wrote, which carry no tag: the path is the cluster's alone."""
    wanted = {"Path": parameters.root(cluster), "Recursive": True}
    for one in account.pages("ssm", "get_parameters_by_path", "Parameters", **wanted):
        yield Found(one["Name"], {}, one["LastModifiedDate"].isoformat(timespec="seconds"))


def _remove_parameter(account: Account, name: str) -> None:
    account.ask("ssm").delete_parameter(Name=name)


def _log_groups(account: Account, cluster: str) -> Iterator[Found]:
    prefix = f"/{names.prefixed(cluster)}/"
    for one in account.pages("logs", "describe_log_groups", "logGroups", logGroupNamePrefix=prefix):
        made = datetime.fromtimestamp(one["creationTime"] / 1000, UTC).isoformat(timespec="seconds")
        yield Found(one["logGroupName"], {}, made)


def _remove_log_group(account: Account, name: str) -> None:
    account.ask("logs").delete_log_group(logGroupName=name)


def _profiles(account: Account, cluster: str) -> Iterator[Found]:
    iam = account.ask("iam")
    for one in account.pages("iam", "list_instance_profiles", "InstanceProfiles"):
        name = one["InstanceProfileName"]
        if name.startswith(_prefix(cluster)):
            found = tags_of(iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"].get("Tags"))
            if belongs(found, cluster):
                yield Found(name, found, one["CreateDate"].isoformat(timespec="seconds"))


def _remove_profile(account: Account, name: str) -> None:
    iam = account.ask("iam")
    for role in iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Roles"]:
        iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=role["RoleName"])
    iam.delete_instance_profile(InstanceProfileName=name)


def _roles(account: Account, cluster: str) -> Iterator[Found]:
    """The name alone does not tell: the roles of cluster `a-b` begin like those of cluster `a`."""
    for one in account.pages("iam", "list_roles", "Roles"):
        if one["RoleName"].startswith(_prefix(cluster)):
            found = tags_of(account.ask("iam").list_role_tags(RoleName=one["RoleName"])["Tags"])
            if belongs(found, cluster):
                yield Found(one["RoleName"], found, one["CreateDate"].isoformat(timespec="seconds"))


def _remove_role(account: Account, name: str) -> None:
    iam = account.ask("iam")
    for policy in iam.list_role_policies(RoleName=name)["PolicyNames"]:
        iam.delete_role_policy(RoleName=name, PolicyName=policy)
    for attached in iam.list_attached_role_policies(RoleName=name)["AttachedPolicies"]:
        iam.detach_role_policy(RoleName=name, PolicyArn=attached["PolicyArn"])
    iam.delete_role(RoleName=name)


def _policies(account: Account, cluster: str) -> Iterator[Found]:
    for one in account.pages("iam", "list_policies", "Policies", Scope="Local"):
        if one["PolicyName"].startswith(_prefix(cluster)):
            found = tags_of(account.ask("iam").list_policy_tags(PolicyArn=one["Arn"])["Tags"])
            if belongs(found, cluster):
                yield Found(one["Arn"], found, one["CreateDate"].isoformat(timespec="seconds"))


def _remove_policy(account: Account, arn: str) -> None:
    iam = account.ask("iam")
    for version in iam.list_policy_versions(PolicyArn=arn)["Versions"]:
        if not version["IsDefaultVersion"]:
            iam.delete_policy_version(PolicyArn=arn, VersionId=version["VersionId"])
    iam.delete_policy(PolicyArn=arn)


def _budgets(account: Account, cluster: str) -> Iterator[Found]:
    try:
        account.ask("budgets").describe_budget(AccountId=account.number, BudgetName=names.prefixed(cluster))
    except ClientError as error:
        if error.response["Error"]["Code"] == "NotFoundException":
            return
        raise
    yield Found(names.prefixed(cluster), {})


def _remove_budget(account: Account, name: str) -> None:
    account.ask("budgets").delete_budget(AccountId=account.number, BudgetName=name)


def _prefix(cluster: str) -> str:
    return f"{names.prefixed(cluster)}-"


ZONE = Kind("private name zone", _zones, _remove_zone, ("route53:hostedzone",))
PARAMETER = Kind("parameter", _parameters, _remove_parameter, ("ssm:parameter",))
LOG_GROUP = Kind("log group", _log_groups, _remove_log_group, ("logs:log-group",))
PROFILE = Kind("instance profile", _profiles, _remove_profile, ("iam:instance-profile",))
ROLE = Kind("role", _roles, _remove_role, ("iam:role",))
POLICY = Kind("policy", _policies, _remove_policy, ("iam:policy",))
BUDGET = Kind("budget", _budgets, _remove_budget, ("budgets:budget", "budgets:budget-action"))
