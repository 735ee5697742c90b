"""Checks of service quotas: the account must allow the machines that the cluster can grow to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cluster import names
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.plan.quotas import ADDRESSES, VPCS, Need, Quota, QuotaShare, needs, unknown
from infra.targets.aws.preflight.subject import Subject

# The account has the default value.
_DEFAULT_VALUE = "NoSuchResourceException"


def check_vcpus(subject: Subject) -> Iterator[Issue]:
    """Report quotas below the maximum size; an error only if permanent nodes could not start in any other way."""
    for where in unknown(subject.spec):
        message = "nothing documents which quota its spot machines count against: it could not be checked"
        yield warning(
            "quota_unknown", where, message, "look under Service Quotas, Amazon EC2, for 'Spot Instance Requests'"
        )
    for need in needs(subject.spec):
        value, metric = _get_quota(subject, need.quota)
        others = max(0, _measure_use(subject, metric) - subject.count_vcpus(need.quota))
        yield from judge(need, value, others, subject.region)


def check_networks(subject: Subject) -> Iterator[Issue]:
    """Report quotas of VPCs and addresses, unless the cluster has its own already."""
    if subject.spec.network.vpc_id:
        return
    ec2 = subject.client("ec2")
    existing = {VPCS: ec2.describe_vpcs()["Vpcs"]}
    if subject.spec.network.egress:
        existing[ADDRESSES] = ec2.describe_addresses()["Addresses"]
    for quota, resources in existing.items():
        if not any(_belongs_to(resource, subject.spec.name) for resource in resources):
            need = Need(quota, (QuotaShare("network", 1, 1, 1),))
            yield from judge(need, _get_quota(subject, quota)[0], len(resources), subject.region)


def judge(need: Need, value: float, others: float, region: str) -> Iterator[Issue]:
    """Yield an issue if a quota, less what others use, is below what the cluster needs."""
    if need.most <= value - others:
        return
    quota, total = need.quota, need.most + others
    used = f", of which others use {others:g}" if others else ""
    message = (
        f"quota {quota.code} ({quota.name}) is {value:g} {quota.unit} in {region}{used}; "
        f"the cluster needs {need.most} ({', '.join(map(str, need.parts))})"
    )
    fix = (
        f"`aws service-quotas request-service-quota-increase --service-code {quota.service} "
        f"--quota-code {quota.code} --desired-value {total:g} --region {region}`"
    )
    make = error if need.least > value - others else warning
    yield make("quota", _find_property(need), message, fix)


def _find_property(need: Need) -> str:
    groups = [part.where for part in need.parts if part.where.startswith("groups.")]
    return groups[0] if len(groups) == 1 else "groups" if groups else need.parts[0].where


def _get_quota(subject: Subject, quota: Quota) -> tuple[float, Mapping[str, Any]]:
    """Return the value of a quota and the metric of its use."""
    query, client = {"ServiceCode": quota.service, "QuotaCode": quota.code}, subject.client("service-quotas")
    try:
        response = client.get_service_quota(**query)["Quota"]
    except ClientError as failure:
        if failure.response["Error"]["Code"] != _DEFAULT_VALUE:
            raise
        response = client.get_aws_default_service_quota(**query)["Quota"]
    return response["Value"], response.get("UsageMetric") or {}


def _measure_use(subject: Subject, metric: Mapping[str, Any]) -> float:
    """Return the account's use, some minutes old; 0 if it is unavailable, because the quota alone is still useful."""
    if not metric:
        return 0.0
    now = datetime.now(UTC)
    try:
        points = subject.client("cloudwatch").get_metric_statistics(
            Namespace=metric["MetricNamespace"],
            MetricName=metric["MetricName"],
            Dimensions=[{"Name": name, "Value": value} for name, value in metric["MetricDimensions"].items()],
            StartTime=now - timedelta(hours=1),
            EndTime=now,
            Period=300,
            Statistics=["Maximum"],
        )["Datapoints"]
    except (ClientError, BotoCoreError):
        return 0.0
    return float(max(points, key=lambda point: point["Timestamp"])["Maximum"]) if points else 0.0


def _belongs_to(resource: Mapping[str, Any], cluster: str) -> bool:
    return any(tag["Key"] == names.CLUSTER and tag["Value"] == cluster for tag in resource.get("Tags", []))
