"""Quotas: which a cluster uses, how much of each, and the exact message if one is too low."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from infra.targets.aws.plan.quotas import ADDRESSES, VPCS, Need, QuotaShare, needs, unknown
from infra.targets.aws.preflight import quotas
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.subject import RunningInstance, Subject
from tests.infra.targets.aws.preflight.conftest import CannedAws
from tests.infra.targets.aws.preflight.issue_text import format_issues, issue_codes
from tests.infra.targets.aws.specs import group, spec
from tests.moto_server import Moto

P, STANDARD, G_SPOT, P5_SPOT = "L-417A185B", "L-1216C47A", "L-3819A6DF", "L-C4BD4855"
ME = Identity("123456789012", "arn:aws:iam::123456789012:user/ann")


def list_needs(**changes: Any) -> dict[str, tuple[int, int]]:
    return {need.quota.code: (need.least, need.most) for need in needs(spec(**changes))}


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (group(), {P: (384, 384)}),
        (group(count=None, min=1, max=64), {P: (192, 64 * 192)}),
        (group(capacity={"kind": "spot"}), {P5_SPOT: (384, 384)}),
        (group(capacity={"kind": "spot", "fallback": ["on-demand"]}), {P5_SPOT: (0, 384), P: (0, 384)}),
        (group(capacity={"kind": "reservation", "reservation": "cr-0"}), {P: (384, 384)}),
        (group(capacity={"kind": "block", "reservation": "cr-0"}), {}),
        (group(instance_type="p4d.24xlarge", capacity={"kind": "spot"}), {"L-7212CCBC": (192, 192)}),
        (group(instance_type="g6.8xlarge"), {"L-DB2E81BA": (64, 64)}),
        (group(instance_type="g6.8xlarge", capacity={"kind": "spot"}), {G_SPOT: (64, 64)}),
        (group(instance_type="trn1.32xlarge"), {"L-2C3B7624": (256, 256)}),
        (group(instance_type="trn1.32xlarge", capacity={"kind": "spot"}), {"L-6B0D517C": (256, 256)}),
        (group(instance_type="c7i.48xlarge", capacity={"kind": "spot"}), {"L-34B43A08": (384, 384)}),
        (group(count=0), {}),
    ],
)
def test_vcpus_by_family_and_purchase(groups: dict[str, Any], expected: dict[str, tuple[int, int]]) -> None:
    """Controller (4 vCPUs) and login node (2) are always on demand."""
    assert list_needs(groups=groups) == {STANDARD: (6, 6), **expected}


def test_instances_of_one_family_share_a_quota() -> None:
    groups = {"a": {"instance_type": "m7i.48xlarge", "count": 1}, "b": {"instance_type": "c7i.48xlarge", "count": 2}}
    assert list_needs(groups=groups) == {STANDARD: (6 + 3 * 192, 6 + 3 * 192)}
    assert list_needs(groups=groups, login={"enabled": False}) == {STANDARD: (4 + 3 * 192, 4 + 3 * 192)}


def test_several_types_count_as_the_largest_and_none_is_certain() -> None:
    mixed = group(instance_type="g6.8xlarge", capacity={"fallback_types": ["g6.16xlarge"]})
    assert list_needs(groups=mixed)["L-DB2E81BA"] == (0, 2 * 64)


def test_groups_with_an_undocumented_quota_are_listed() -> None:
    p6 = spec(groups=group(instance_type="p6-b200.48xlarge", capacity={"kind": "spot"}))
    assert unknown(p6) == ("groups.gpu",)
    assert unknown(spec()) == ()


def request(code: str, total: int, service: str = "ec2") -> str:
    return (
        f"`aws service-quotas request-service-quota-increase --service-code {service} --quota-code {code} "
        f"--desired-value {total} --region us-east-1`"
    )


def p_need(least: int, most: int) -> Need:
    (need,) = (n for n in needs(spec(groups=group(count=None, min=least, max=most))) if n.quota.code == P)
    return need


@pytest.mark.fault(27, place="unit")
@pytest.mark.parametrize(
    ("value", "others", "level", "used", "total"),
    [
        (0, 0, "error", "", 384),
        (191, 0, "error", "", 384),
        (192, 0, "warning", "", 384),
        (383, 0, "warning", "", 384),
        (384, 192, "warning", ", of which others use 192", 576),
        (384, 193, "error", ", of which others use 193", 577),
    ],
)
def test_a_quota_that_is_too_low_is_reported_with_the_fix(
    value: float, others: float, level: str, used: str, total: int
) -> None:
    """The group has one to two nodes: it is an error only if the first node cannot be launched."""
    assert format_issues(quotas.judge(p_need(1, 2), value, others, "us-east-1")) == [
        f"{level} quota groups.gpu: quota {P} (Running On-Demand P instances) is {value} vCPUs in "
        f"us-east-1{used}; "
        f"the cluster needs 384 (groups.gpu: 2 x 192); fix: {request(P, total)}"
    ]


@pytest.mark.parametrize(("value", "others"), [(384, 0), (576, 192)])
def test_a_sufficient_quota_has_no_issues(value: float, others: float) -> None:
    assert format_issues(quotas.judge(p_need(1, 2), value, others, "us-east-1")) == []


def test_several_groups_are_named_together() -> None:
    parts = (QuotaShare("controller", 1, 1, 4), QuotaShare("groups.a", 1, 1, 192), QuotaShare("groups.b", 0, 2, 192))
    (issue,) = quotas.judge(Need(VPCS, parts), 5, 0, "us-east-1")
    assert (issue.where, issue.level) == ("groups", "error")
    assert "(controller: 1 x 4, groups.a: 1 x 192, groups.b: 2 x 192)" in issue.message


def subject(canned_aws: CannedAws, running: tuple[RunningInstance, ...] = (), **changes: Any) -> Subject:
    return Subject(spec(**changes), canned_aws.account, ME, running)


def metric(cls: str) -> dict[str, Any]:
    dimensions = {"Service": "EC2", "Type": "Resource", "Resource": "vCPU", "Class": cls}
    return {"MetricNamespace": "AWS/Usage", "MetricName": "ResourceCount", "MetricDimensions": dimensions}


@pytest.mark.fault(27)
def test_each_quota_and_its_usage_are_read(canned_aws: CannedAws) -> None:
    values = {P: 576.0, STANDARD: 64.0}
    canned_aws.answer(
        "service-quotas",
        "GetServiceQuota",
        lambda params: {"Quota": {"Value": values[_code(params)], "UsageMetric": metric(_code(params))}},
    )
    now = datetime.now(UTC)
    points = [{"Timestamp": now, "Maximum": 384.0}, {"Timestamp": now - timedelta(minutes=5), "Maximum": 9e9}]
    canned_aws.answer("cloudwatch", "GetMetricStatistics", {"Datapoints": points})
    issues = list(quotas.check_vcpus(subject(canned_aws)))
    assert issue_codes(issues) == [("error", "quota"), ("error", "quota")]
    assert "is 64 vCPUs in us-east-1, of which others use 384" in issues[0].message
    assert "is 576 vCPUs in us-east-1, of which others use 384; the cluster needs 384" in issues[1].message


def test_usage_by_the_cluster_itself_is_not_counted(canned_aws: CannedAws) -> None:
    canned_aws.answer("service-quotas", "GetServiceQuota", {"Quota": {"Value": 400.0, "UsageMetric": metric("P")}})
    canned_aws.answer(
        "cloudwatch", "GetMetricStatistics", {"Datapoints": [{"Timestamp": datetime.now(UTC), "Maximum": 390.0}]}
    )
    running = tuple(
        RunningInstance(name, False, "", 1, "")
        for name in ("p5.48xlarge", "p5.48xlarge", "m7i.48xlarge", "m7i.48xlarge")
    )
    assert format_issues(quotas.check_vcpus(subject(canned_aws, running))) == []


def test_without_usage_the_whole_quota_counts(canned_aws: CannedAws) -> None:
    canned_aws.answer("service-quotas", "GetServiceQuota", {"Quota": {"Value": 383.0, "UsageMetric": metric("P")}})
    canned_aws.refuse("cloudwatch", "GetMetricStatistics", "AccessDenied")
    assert issue_codes(quotas.check_vcpus(subject(canned_aws))) == [("error", "quota")]


def test_a_quota_that_was_never_changed_has_its_default(canned_aws: CannedAws) -> None:
    canned_aws.refuse("service-quotas", "GetServiceQuota", "NoSuchResourceException")
    canned_aws.answer("service-quotas", "GetAWSDefaultServiceQuota", {"Quota": {"Value": 5.0}})
    messages = [issue.message for issue in quotas.check_vcpus(subject(canned_aws))]
    assert [message.split(" ")[1] for message in messages] == [STANDARD, P]
    assert "is 5 vCPUs" in messages[0]


def test_an_undocumented_spot_quota_is_a_warning(canned_aws: CannedAws) -> None:
    canned_aws.answer("service-quotas", "GetServiceQuota", {"Quota": {"Value": 1e6}})
    p6 = group(instance_type="p6-b200.48xlarge", capacity={"kind": "spot"})
    assert format_issues(quotas.check_vcpus(subject(canned_aws, groups=p6))) == [
        "warning quota_unknown groups.gpu: nothing documents which quota its spot machines count against: it could not "
        "be checked; fix: look under Service Quotas, Amazon EC2, for 'Spot Instance Requests'"
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [VPCS.code, ADDRESSES.code]),
        ({"network": {"egress": False}}, [VPCS.code]),
        ({"network": {"vpc_id": "vpc-0", "subnet_ids": ["subnet-0"]}}, []),
    ],
)
def test_quotas_of_vpcs_and_addresses_are_checked(
    canned_aws: CannedAws, aws: Moto, changes: dict[str, Any], expected: list[str]
) -> None:
    """moto's account has one VPC; this test allocates one address."""
    aws.client("ec2").allocate_address(Domain="vpc")
    canned_aws.answer("service-quotas", "GetServiceQuota", {"Quota": {"Value": 1.0}})
    issues = list(quotas.check_networks(subject(canned_aws, **changes)))
    assert [issue.message.split(" ")[1] for issue in issues] == expected
    if expected:
        assert format_issues(issues)[0] == (
            "error quota network: quota L-F678F1CE (VPCs per Region) is 1 VPCs in us-east-1, of which others use 1; "
            f"the cluster needs 1 (network: 1 x 1); fix: {request('L-F678F1CE', 2, 'vpc')}"
        )


def test_an_existing_cluster_needs_no_second_vpc(canned_aws: CannedAws, aws: Moto) -> None:
    tags = [{"ResourceType": "vpc", "Tags": [{"Key": "muster.cluster", "Value": "demo"}]}]
    aws.client("ec2").create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=tags)
    canned_aws.answer("service-quotas", "GetServiceQuota", {"Quota": {"Value": 1.0}})
    assert format_issues(quotas.check_networks(subject(canned_aws, network={"egress": False}))) == []


def _code(params: dict[str, Any]) -> str:
    return str(json.loads(params["body"])["QuotaCode"])
