"""Service quotas: whether the account may have as many machines as the cluster can grow to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cluster import names
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.plan.quotas import ADDRESSES, VPCS, Need, Quota, QuotaShare, needs, unknown
from infra.targets.aws.preflight.subject import Subject

_UNCHANGED = "NoSuchResourceException"


def vcpus(subject: Subject) -> Iterator[Issue]:
    """Needed is the most the queue can bring up; an error only where nodes that always exist have no other way."""
    for where in unknown(subject.spec):
        message = "nothing documents which quota its spot machines count against: it could not be judged"
        yield warning(
            "quota_unknown", where, message, "look under Service Quotas, Amazon EC2, for 'Spot Instance Requests'"
        )
    for need in needs(subject.spec):
        value, metric = _quota(subject, need.quota)
        others = max(0, _in_use(subject, metric) - subject.holds(need.quota))
        yield from judge(need, value, others, subject.region)


def networks(subject: Subject) -> Iterator[Issue]:
    """A VPC and an address of its own, unless the cluster has them already."""
    if subject.spec.network.vpc_id:
        return
    ec2 = subject.client("ec2")
    found = {VPCS: ec2.describe_vpcs()["Vpcs"]}
    if subject.spec.network.egress:
        found[ADDRESSES] = ec2.describe_addresses()["Addresses"]
    for quota, there in found.items():
        if not any(_ours(one, subject.spec.name) for one in there):
            need = Need(quota, (QuotaShare("network", 1, 1, 1),))
            yield from judge(need, _quota(subject, quota)[0], len(there), subject.region)


def judge(need: Need, value: float, others: float, region: str) -> Iterator[Issue]:
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
    yield make("quota", _where(need), message, fix)


def _where(need: Need) -> str:
    groups = [part.where for part in need.parts if part.where.startswith("groups.")]
    return groups[0] if len(groups) == 1 else "groups" if groups else need.parts[0].where


def _quota(subject: Subject, quota: Quota) -> tuple[float, Mapping[str, Any]]:
    """Its value, and the metric that counts what is used of it."""
    asked, client = {"ServiceCode": quota.service, "QuotaCode": quota.code}, subject.client("service-quotas")
    try:
        found = client.get_service_quota(**asked)["Quota"]
    except ClientError as failure:
        if failure.response["Error"]["Code"] != _UNCHANGED:
            raise
        found = client.get_aws_default_service_quota(**asked)["Quota"]
    return found["Value"], found.get("UsageMetric") or {}


def _in_use(subject: Subject, metric: Mapping[str, Any]) -> float:
    """By everybody in the account, as of a few minutes ago; 0 where it is not told: the quota still says enough."""
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


def _ours(thing: Mapping[str, Any], cluster: str) -> bool:
    return any(tag["Key"] == names.CLUSTER and tag["Value"] == cluster for tag in thing.get("Tags", []))
