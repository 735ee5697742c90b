"""Purchase options of a group: the order in which they are tried, and when a placement group is used."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.spec import NodeGroup
from infra.targets.aws.plan.capacity import Option, options

ZONES = ("us-east-1a", "us-east-1b")


def group_with(capacity: dict[str, Any], **fields: Any) -> NodeGroup:
    return NodeGroup.model_validate(
        {"instance_type": "p5.48xlarge", "count": 2, "fabric": "efa", "capacity": capacity, **fields}
    )


def test_the_default_is_on_demand_in_each_zone() -> None:
    assert options(group_with({}), ZONES) == (
        Option("on-demand", "p5.48xlarge", "us-east-1a", None, True),
        Option("on-demand", "p5.48xlarge", "us-east-1b", None, True),
    )


def test_every_zone_is_tried_before_the_next_purchase_option() -> None:
    group = group_with(
        {"kind": "reservation", "reservation": "cr-0", "fallback": ["spot", "on-demand"], "zones": ["b", "a"]}
    )
    assert [(o.purchase, o.zone, o.reservation) for o in options(group, ZONES)] == [
        ("reservation", "b", "cr-0"),
        ("reservation", "a", "cr-0"),
        ("spot", "b", None),
        ("spot", "a", None),
        ("on-demand", "b", None),
        ("on-demand", "a", None),
    ]


def test_every_zone_is_tried_before_the_next_type_and_every_type_before_the_next_purchase_option() -> None:
    group = group_with(
        {"kind": "spot", "fallback": ["on-demand"], "fallback_types": ["g6.16xlarge"]}, instance_type="g6.8xlarge"
    )
    assert [(o.purchase, o.instance_type, o.zone[-1]) for o in options(group, ZONES)] == [
        (purchase, instance_type, zone)
        for purchase in ("spot", "on-demand")
        for instance_type in ("g6.8xlarge", "g6.16xlarge")
        for zone in ("a", "b")
    ]


def test_reserved_capacity_is_only_for_the_first_type() -> None:
    capacity = {"kind": "reservation", "reservation": "cr-0", "fallback": ["on-demand"], "fallback_types": ["t3.large"]}
    bought = [(o.purchase, o.instance_type, o.placement) for o in options(group_with(capacity), ZONES[:1])]
    assert bought == [
        ("reservation", "p5.48xlarge", False),
        ("on-demand", "p5.48xlarge", True),
        ("on-demand", "t3.large", False),
    ]


def test_duplicate_options_are_tried_once() -> None:
    assert len(options(group_with({"fallback": ["on-demand"]}), ZONES[:1])) == 1


@pytest.mark.parametrize(
    ("capacity", "fields", "placed"),
    [
        ({}, {}, True),
        ({"kind": "spot"}, {}, True),
        ({}, {"fabric": "tcp"}, False),
        ({}, {"count": 1}, False),
        ({}, {"count": None, "min": 0, "max": 8}, True),
        ({}, {"instance_type": "t3.large"}, False),
        ({"placement": "none"}, {}, False),
        ({"placement": "cluster"}, {"fabric": "tcp"}, True),
        ({"kind": "reservation"}, {}, False),
        ({"kind": "reservation", "placement": "cluster"}, {}, True),
        ({"kind": "block", "reservation": "cr-0"}, {}, False),
        ({"kind": "block", "reservation": "cr-0", "placement": "cluster"}, {}, False),
    ],
)
def test_use_of_a_placement_group(capacity: dict[str, Any], fields: dict[str, Any], placed: bool) -> None:
    assert options(group_with(capacity, **fields), ZONES)[0].placement is placed


def test_a_fallback_uses_a_placement_group_even_if_its_reservation_does_not() -> None:
    group = group_with({"kind": "reservation", "reservation": "cr-0", "fallback": ["on-demand"]})
    assert [o.placement for o in options(group, ZONES[:1])] == [False, True]
