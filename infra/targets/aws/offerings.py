"""Where instance types are sold, as AWS says it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def sold(ec2: Any, types: Sequence[str]) -> dict[str, list[str]]:
    """In which zones of the region each type can be had."""
    wanted = [{"Name": "instance-type", "Values": list(types)}]
    found: dict[str, list[str]] = {name: [] for name in types}
    for page in ec2.get_paginator("describe_instance_type_offerings").paginate(
        LocationType="availability-zone", Filters=wanted
    ):
        for offer in page["InstanceTypeOfferings"]:
            found[offer["InstanceType"]].append(offer["Location"])
    return {name: sorted(where) for name, where in found.items()}
