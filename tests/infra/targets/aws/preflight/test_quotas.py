"""Quotas: which ones a cluster draws on, how much of each, and what is said where there is too little."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from infra.targets.aws.plan.quotas import ADDRESSES, VPCS, Need, QuotaShare, needs, unknown
from infra.targets.aws.preflight import quotas
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.subject import RunningInstance, Subject
from tests.infra.targets.aws.preflight.conftest import Answered
from tests.infra.targets.aws.preflight.words import codes, words
from tests.infra.targets.aws.specs import group, spec
from tests.moto_server import Moto

P, STANDARD, G_SPOT, P5_SPOT = "L-417A185B", "L-1216C47A", "L-3819A6DF", "L-C4BD4855"
ME = Identity("123456789012", "arn:aws:iam::123456789012:user/ann")


def needed(**changes: Any) -> dict[str, tuple[int, int]]:
    return {need.quota.code: (need.least, need.most) for need in needs(spec(**changes))}


@pytest.mark.parametrize(
    ("groups", "found"),
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
def test_vcpus_by_family_and_purchase(groups: dict[str, Any], found: dict[str, tuple[int, int]]) -> None:
    """Controller (4) and login (2) are always there, on demand."""
    assert needed(groups=groups) == {STANDARD: (6, 6), **found}


def test_machines_of_one_family_share_a_quota() -> None:
    two = {"a": {"instance_type": "m7i.48xlarge", "count": 1}, "b": {"instance_type": "c7i.48xlarge", "count": 2}}
    assert needed(groups=two) == {STANDARD: (6 + 3 * 192, 6 + 3 * 192)}
    assert needed(groups=two, login={"enabled": False}) == {STANDARD: (4 + 3 * 192, 4 + 3 * 192)}


def test_a_quota_that_nobody_documents_is_named() -> None:
    p6 = spec(groups=group(instance_type="p6-b200.48xlarge", capacity={"kind": "spot"}))
    assert unknown(p6) == ("groups.gpu",)
    assert unknown(spec()) == ()


def request(code: str, total: int, service: str = "ec2") -> str:
    return (
        f"`aws service-quotas request-service-quota-increase --service-code {service} --quota-code {code} "
        f"--desired-value {total} --region us-east-1`"
    )


def of_p(least: int, most: int) -> Need:
    (need,) = (n for n in needs(spec(groups=group(count=None, min=least, max=most))) if n.quota.code == P)
    return need


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
def test_too_little(value: float, others: float, level: str, used: str, total: int) -> None:
    """One node is always there, two at most: an error only where the first could not come."""
    assert words(quotas.judge(of_p(1, 2), value, others, "us-east-1")) == [
        f"{level} quota groups.gpu: quota {P} (Running On-Demand P instances) is {value} vCPUs in "
        f"us-east-1{used}; "
        f"the cluster needs 384 (groups.gpu: 2 x 192); fix: {request(P, total)}"
    ]


@pytest.mark.parametrize(("value", "others"), [(384, 0), (576, 192)])
def test_enough(value: float, others: float) -> None:
    assert words(quotas.judge(of_p(1, 2), value, others, "us-east-1")) == []


def test_several_groups_are_named_together() -> None:
    parts = (QuotaShare("controller", 1, 1, 4), QuotaShare("groups.a", 1, 1, 192), QuotaShare("groups.b", 0, 2, 192))
    (issue,) = quotas.judge(Need(VPCS, parts), 5, 0, "us-east-1")
    assert (issue.where, issue.level) == ("groups", "error")
    assert "(controller: 1 x 4, groups.a: 1 x 192, groups.b: 2 x 192)" in issue.message


def subject(answered: Answered, running: tuple[RunningInstance, ...] = (), **changes: Any) -> Subject:
    return Subject(spec(**changes), answered.account, ME, running)


def metric(cls: str) -> dict[str, Any]:
    dimensions = {"Service": "EC2", "Type": "Resource", "Resource": "vCPU", "Class": cls}
    return {"MetricNamespace": "AWS/Usage", "MetricName": "ResourceCount", "MetricDimensions": dimensions}


def test_the_account_is_asked_for_each_quota_and_its_use(answered: Answered) -> None:
    values = {P: 576.0, STANDARD: 64.0}
    answered.answer(
        "service-quotas",
        "GetServiceQuota",
        lambda params: {"Quota": {"Value": values[_code(params)], "UsageMetric": metric(_code(params))}},
    )
    now = datetime.now(UTC)
    points = [{"Timestamp": now, "Maximum": 384.0}, {"Timestamp": now - timedelta(minutes=5), "Maximum": 9e9}]
    answered.answer("cloudwatch", "GetMetricStatistics", {"Datapoints": points})
    found = list(quotas.check_vcpus(subject(answered)))
    assert codes(found) == [("error", "quota"), ("error", "quota")]
    assert "is 64 vCPUs in us-east-1, of which others use 384" in found[0].message
    assert "is 576 vCPUs in us-east-1, of which others use 384; the cluster needs 384" in found[1].message


def test_what_the_cluster_has_is_not_others(answered: Answered) -> None:
    answered.answer("service-quotas", "GetServiceQuota", {"Quota": {"Value": 400.0, "UsageMetric": metric("P")}})
    answered.answer(
        "cloudwatch", "GetMetricStatistics", {"Datapoints": [{"Timestamp": datetime.now(UTC), "Maximum": 390.0}]}
    )
    mine = tuple(
        RunningInstance(name, False, "", 1, "")
        for name in ("p5.48xlarge", "p5.48xlarge", "m7i.48xlarge", "m7i.48xlarge")
    )
    assert words(quotas.check_vcpus(subject(answered, mine))) == []


def test_use_that_cannot_be_read_leaves_the_quota(answered: Answered) -> None:
    answered.answer("service-quotas", "GetServiceQuota", {"Quota": {"Value": 383.0, "UsageMetric": metric("P")}})
    answered.refuse("cloudwatch", "GetMetricStatistics", "AccessDenied")
    assert codes(quotas.check_vcpus(subject(answered))) == [("error", "quota")]


def test_a_quota_never_changed_has_its_default(answered: Answered) -> None:
    answered.refuse("service-quotas", "GetServiceQuota", "NoSuchResourceException")
    answered.answer("service-quotas", "GetAWSDefaultServiceQuota", {"Quota": {"Value": 5.0}})
    found = [issue.message for issue in quotas.check_vcpus(subject(answered))]
    assert [message.split(" ")[1] for message in found] == [STANDARD, P]
    assert "is 5 vCPUs" in found[0]


def test_spot_of_p6_says_that_nothing_is_known(answered: Answered) -> None:
    answered.answer("service-quotas", "GetServiceQuota", {"Quota": {"Value": 1e6}})
    p6 = group(instance_type="p6-b200.48xlarge", capacity={"kind": "spot"})
    assert words(quotas.check_vcpus(subject(answered, groups=p6))) == [
        "warning quota_unknown groups.gpu: nothing documents which quota its spot machines count against: it could not "
        "be checked; fix: look under Service Quotas, Amazon EC2, for 'Spot Instance Requests'"
    ]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, [VPCS.code, ADDRESSES.code]),
        ({"network": {"egress": False}}, [VPCS.code]),
        ({"network": {"vpc_id": "vpc-0", "subnet_ids": ["subnet-0"]}}, []),
    ],
)
def test_a_vpc_and_an_address_more(answered: Answered, aws: Moto, changes: dict[str, Any], found: list[str]) -> None:
    """moto's account has one VPC; one address is taken here."""
    aws.client("ec2").allocate_address(Domain="vpc")
    answered.answer("service-quotas", "GetServiceQuota", {"Quota": {"Value": 1.0}})
    issues = list(quotas.check_networks(subject(answered, **changes)))
    assert [issue.message.split(" ")[1] for issue in issues] == found
    if found:
        assert words(issues)[0] == (
            "error quota network: quota L-F678F1CE (VPCs per Region) is 1 VPCs in us-east-1, of which others use 1; "
            f"the cluster needs 1 (network: 1 x 1); fix: {request('L-F678F1CE', 2, 'vpc')}"
        )


def test_a_cluster_that_has_its_vpc_needs_no_other(answered: Answered, aws: Moto) -> None:
    tags = [{"ResourceType": "vpc", "Tags": [{"Key": "muster.cluster", "Value": "demo"}]}]
    aws.client("ec2").create_vpc(CidrBlock="10.0.0.0/16", TagSpecifications=tags)
    answered.answer("service-quotas", "GetServiceQuota", {"Quota": {"Value": 1.0}})
    assert words(quotas.check_networks(subject(answered, network={"egress": False}))) == []


def _code(params: dict[str, Any]) -> str:
    return str(json.loads(params["body"])["QuotaCode"])
