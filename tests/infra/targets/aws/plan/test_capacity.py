"""How machines are bought: the order of tries, and when a placement group helps or hurts."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.spec import NodeGroup
from infra.targets.aws.plan.capacity import Option, options

ZONES = ("us-east-1a", "us-east-1b")


def of(capacity: dict[str, Any], **fields: Any) -> NodeGroup:
    return NodeGroup.model_validate(
        {"instance_type": "p5.48xlarge", "count": 2, "fabric": "efa", "capacity": capacity, **fields}
    )


def test_by_default_on_demand_in_each_zone_of_the_network() -> None:
    assert options(of({}), ZONES) == (
        Option("on-demand", "us-east-1a", None, True),
        Option("on-demand", "us-east-1b", None, True),
    )


def test_every_zone_is_tried_before_the_next_way_of_buying() -> None:
    group = of({"kind": "reservation", "reservation": "cr-0", "fallback": ["spot", "on-demand"], "zones": ["b", "a"]})
    assert [(o.purchase, o.zone, o.reservation) for o in options(group, ZONES)] == [
        ("reservation", "b", "cr-0"),
        ("reservation", "a", "cr-0"),
        ("spot", "b", None),
        ("spot", "a", None),
        ("on-demand", "b", None),
        ("on-demand", "a", None),
    ]


def test_what_is_named_twice_is_tried_once() -> None:
    assert len(options(of({"fallback": ["on-demand"]}), ZONES[:1])) == 1


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
def test_placement(capacity: dict[str, Any], fields: dict[str, Any], placed: bool) -> None:
    assert options(of(capacity, **fields), ZONES)[0].placement is placed


def test_a_fallback_from_a_reservation_is_placed_though_the_reservation_is_not() -> None:
    group = of({"kind": "reservation", "reservation": "cr-0", "fallback": ["on-demand"]})
    assert [o.placement for o in options(group, ZONES[:1])] == [False, True]
