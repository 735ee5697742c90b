"""Machines that will never report: ended or stopped, with the reason that EC2 has for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ALIVE = ("pending", "running")


def lost(ec2: Any, machines: Mapping[str, str]) -> dict[str, str]:
    """What became of them, by node; `machines` are instances by node."""
    if not machines:
        return {}
    filters = [{"Name": "instance-id", "Values": sorted(machines.values())}]
    pages = ec2.get_paginator("describe_instances").paginate(Filters=filters)
    found = {one["InstanceId"]: one for page in pages for group in page["Reservations"] for one in group["Instances"]}
    said = {node: _said(id_, found.get(id_)) for node, id_ in machines.items()}
    return {node: text for node, text in said.items() if text}


def _said(id_: str, raw: Mapping[str, Any] | None) -> str:
    if raw is None:
        return f"{id_} is gone"
    state = raw["State"]["Name"]
    why = raw.get("StateReason", {}).get("Message", "")
    return "" if state in _ALIVE else f"{id_} is {state}" + (f" ({why})" if why else "")
