"""Zones: what is sold where, against where the cluster wants it."""

from __future__ import annotations

from typing import Any

import pytest

from infra.targets.aws.offerings import list_offered_zones
from infra.targets.aws.preflight import offerings
from tests.infra.targets.aws.preflight.words import words
from tests.infra.targets.aws.specs import group, spec
from tests.moto_server import Moto

A, B, C = "us-east-1a", "us-east-1b", "us-east-1c"
FIXED = {"m7i.xlarge": [A, B, C], "m7i.large": [A, B, C]}


def judged(found: dict[str, list[str]], zones: tuple[str, ...] = (), **changes: Any) -> list[str]:
    region = {"region": "us-east-1", **({"zones": list(zones)} if zones else {})}
    return words(offerings.judge(spec(aws=region, **changes), {**FIXED, **found}))


def test_sold_where_it_is_wanted() -> None:
    assert judged({"p5.48xlarge": [A, B]}) == []
    assert judged({"p5.48xlarge": [A, B]}, (A,)) == []


def test_sold_nowhere() -> None:
    assert judged({"p5.48xlarge": []}) == [
        "error not_offered groups.gpu.instance_type: p5.48xlarge is not sold in any zone of us-east-1; "
        "fix: choose another type, or another region"
    ]


def test_not_in_any_zone_of_the_group() -> None:
    assert judged({"p5.48xlarge": [C]}, (A, B)) == [
        "error not_offered groups.gpu: p5.48xlarge is not sold in us-east-1a, us-east-1b; it is sold in us-east-1c; "
        "fix: write `zones: [us-east-1c]`, or choose another type"
    ]


def test_not_in_one_of_its_zones() -> None:
    assert judged({"p5.48xlarge": [A]}, (A, B)) == [
        "warning not_offered groups.gpu: p5.48xlarge is not sold in us-east-1b; it is sold in us-east-1a; "
        "fix: remove that zone: launches there always fail"
    ]


def test_a_group_has_its_own_zones_the_controller_the_first() -> None:
    in_b = group(capacity={"zones": [B]})
    assert judged({"p5.48xlarge": [B]}, (A, B), groups=in_b) == []
    (said,) = judged({"p5.48xlarge": [B], "m7i.xlarge": [B]}, (A, B), groups=in_b)
    assert said.startswith("error not_offered controller: m7i.xlarge is not sold in us-east-1a")


def test_no_zone_has_them_all() -> None:
    assert judged({"p5.48xlarge": [C], "m7i.xlarge": [A], "m7i.large": [A, C]}) == [
        "error no_common_zone aws.zones: no zone offers every instance type (m7i.xlarge: us-east-1a; m7i.large: "
        "us-east-1a, us-east-1c; p5.48xlarge: us-east-1c); fix: name zones for aws and for each group, or choose "
        "other types"
    ]


@pytest.mark.parametrize("name", ["g6.8xlarge", "m7i.large"])
def test_aws_is_asked_for_all_pages(aws: Moto, name: str) -> None:
    asked = list_offered_zones(aws.client("ec2"), ["g6.8xlarge", "m7i.large", "x9.nothing"])
    assert asked[name] == sorted(asked[name])
    assert asked[name]
    assert asked["x9.nothing"] == []
