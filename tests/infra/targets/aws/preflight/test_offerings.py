"""Pre-flight of instance types against the zones in which AWS sells them."""

from __future__ import annotations

from typing import Any

import pytest

from infra.targets.aws.offerings import list_offered_zones
from infra.targets.aws.preflight import offerings
from infra.targets.aws.preflight.account import Identity
from infra.targets.aws.preflight.subject import RunningInstance, Subject
from tests.infra.targets.aws.preflight.conftest import CannedAws
from tests.infra.targets.aws.preflight.issue_text import format_issues
from tests.infra.targets.aws.specs import group, spec
from tests.moto_server import Moto

A, B, C = "us-east-1a", "us-east-1b", "us-east-1c"
ME = Identity("123456789012", "arn:aws:iam::123456789012:user/ann")
FIXED = {"m7i.xlarge": [A, B, C], "m7i.large": [A, B, C]}


def judge(sold: dict[str, list[str]], zones: tuple[str, ...] = (), **changes: Any) -> list[str]:
    region = {"region": "us-east-1", **({"zones": list(zones)} if zones else {})}
    return format_issues(offerings.judge(spec(aws=region, **changes), {**FIXED, **sold}))


def test_types_sold_in_the_zones_of_the_cluster_are_fine() -> None:
    assert judge({"p5.48xlarge": [A, B]}) == []
    assert judge({"p5.48xlarge": [A, B]}, (A,)) == []


def test_a_type_sold_nowhere_in_the_region_is_an_error() -> None:
    assert judge({"p5.48xlarge": []}) == [
        "error not_offered groups.gpu.instance_type: p5.48xlarge is not sold in any zone of us-east-1; "
        "fix: choose another type, or another region"
    ]


def test_a_type_sold_in_no_zone_of_the_group_is_an_error() -> None:
    assert judge({"p5.48xlarge": [C]}, (A, B)) == [
        "error not_offered groups.gpu: p5.48xlarge is not sold in us-east-1a, us-east-1b; it is sold in us-east-1c; "
        "fix: write `zones: [us-east-1c]`, or choose another type"
    ]


def test_a_type_missing_in_some_zones_is_a_warning() -> None:
    assert judge({"p5.48xlarge": [A]}, (A, B)) == [
        "warning not_offered groups.gpu: p5.48xlarge is not sold in us-east-1b; it is sold in us-east-1a; "
        "fix: remove that zone: launches there always fail"
    ]


def test_groups_use_their_own_zones_and_the_controller_the_first() -> None:
    in_b = group(capacity={"zones": [B]})
    assert judge({"p5.48xlarge": [B]}, (A, B), groups=in_b) == []
    (message,) = judge({"p5.48xlarge": [B], "m7i.xlarge": [B]}, (A, B), groups=in_b)
    assert message.startswith("error not_offered controller: m7i.xlarge is not sold in us-east-1a")


def test_without_zones_some_zone_must_sell_every_type() -> None:
    assert judge({"p5.48xlarge": [C], "m7i.xlarge": [A], "m7i.large": [A, C]}) == [
        "error no_common_zone aws.zones: no zone offers every instance type (m7i.xlarge: us-east-1a; m7i.large: "
        "us-east-1a, us-east-1c; p5.48xlarge: us-east-1c); fix: name zones for aws and for each group, or choose "
        "other types"
    ]


def test_a_type_that_the_zone_of_a_running_cluster_does_not_sell_is_an_error() -> None:
    """Without `aws.zones`, the cluster stays in the zone that was chosen for its first types."""
    described = spec(aws={"region": "us-east-1"})
    sold = {**FIXED, "p5.48xlarge": [A, C]}
    assert format_issues(offerings.judge(described, sold, [A])) == []
    assert format_issues(offerings.judge(described, sold, [B])) == [
        "error not_offered groups.gpu.instance_type: p5.48xlarge is not sold in us-east-1b, the zone of this cluster; "
        "fix: choose a type that this zone offers, or create a new cluster"
    ]


def test_types_must_be_sold_in_the_zones_of_their_subnets() -> None:
    """Controller and login are in the first subnet, groups in those of their zones."""

    def judge_subnets(*subnet_zones: str, groups: dict[str, Any], controller: tuple[str, ...] = (A, B, C)) -> list[str]:
        sold = {**FIXED, "m7i.xlarge": list(controller), "p5.48xlarge": [A, B]}
        return format_issues(offerings.judge_subnets(spec(groups=groups), subnet_zones, sold))

    where = "not_offered groups.gpu.instance_type: p5.48xlarge is not sold in us-east-1c, where the subnets are; fix: "
    assert judge_subnets(A, B, groups=group()) == []
    assert judge_subnets(C, groups=group()) == [f"error {where}use a subnet in another zone, or another type"]
    assert judge_subnets(A, C, groups=group()) == [f"warning {where}remove that subnet: launches there always fail"]
    assert judge_subnets(A, C, groups=group(capacity={"zones": [A]})) == []
    assert judge_subnets(A, C, groups=group(capacity={"zones": [C]})) == [
        f"error {where}use a subnet in another zone, or another type"
    ]
    assert judge_subnets(A, B, groups=group(), controller=(B,)) == [
        "error not_offered controller.instance_type: m7i.xlarge is not sold in us-east-1a, where the subnets are; "
        "fix: use a subnet in another zone, or another type"
    ]


def check(canned_aws: CannedAws, running: tuple[RunningInstance, ...] = (), **changes: Any) -> list[str]:
    """Return the issues of a spec by moto's copy of the offerings of AWS."""
    return format_issues(offerings.check_zones(Subject(spec(**changes), canned_aws.account, ME, running)))


def test_the_account_is_asked_for_the_zones_of_each_type(canned_aws: CannedAws) -> None:
    in_zone_b = {"region": "us-east-1", "zones": [B]}
    assert check(canned_aws, aws=in_zone_b) == []
    assert check(canned_aws, aws=in_zone_b, groups=group(instance_type="p5en.48xlarge")) == [
        "error not_offered groups.gpu: p5en.48xlarge is not sold in us-east-1b; it is sold in us-east-1a, us-east-1c; "
        "fix: write `zones: [us-east-1a]`, or choose another type"
    ]
    running = (RunningInstance("m7i.xlarge", False, "", 1, "", zone=B),)
    assert check(canned_aws, running) == []
    assert check(canned_aws, running, groups=group(instance_type="p5en.48xlarge")) == [
        "error not_offered groups.gpu.instance_type: p5en.48xlarge is not sold in us-east-1b, the zone of this "
        "cluster; fix: choose a type that this zone offers, or create a new cluster"
    ]


@pytest.mark.parametrize("name", ["g6.8xlarge", "m7i.large"])
def test_offered_zones_are_sorted_and_empty_for_unknown_types(aws: Moto, name: str) -> None:
    zones = list_offered_zones(aws.client("ec2"), ["g6.8xlarge", "m7i.large", "x9.nothing"])
    assert zones[name] == sorted(zones[name])
    assert zones[name]
    assert zones["x9.nothing"] == []
