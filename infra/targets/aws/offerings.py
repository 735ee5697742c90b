"""The availability zones in which AWS offers instance types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def list_offered_zones(ec2: Any, instance_types: Sequence[str]) -> dict[str, list[str]]:
    """Return, by instance type, the zones of the region that offer it."""
    filters = [{"Name": "instance-type", "Values": list(instance_types)}]
    pages = ec2.get_paginator("describe_instance_type_offerings").paginate(
        LocationType="availability-zone", Filters=filters
    )
    zones: dict[str, list[str]] = {name: [] for name in instance_types}
    for page in pages:
        for offering in page["InstanceTypeOfferings"]:
            zones[offering["InstanceType"]].append(offering["Location"])
    return {name: sorted(locations) for name, locations in zones.items()}
