"""The reports of a cluster's machines, each in the parameter of its node."""

from __future__ import annotations

from typing import Any

from infra.targets.aws.node import parameters
from infra.targets.aws.node.parameters import Report, parse_report


def read_reports(ssm: Any, cluster: str) -> dict[str, Report]:
    """Return the reports of all nodes of a cluster by node name, unreadable ones included."""
    pages = ssm.get_paginator("get_parameters_by_path").paginate(Path=parameters.nodes(cluster))
    values = {entry["Name"].rpartition("/")[2]: entry["Value"] for page in pages for entry in page["Parameters"]}
    return {node: parse_report(value) for node, value in values.items()}
