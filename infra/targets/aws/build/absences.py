"""Nodes whose machine ended before it reported, and for which nothing but another `up` launches one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster import names
from infra.targets.aws.client import create_client
from infra.targets.aws.launcher.node_names import read_node_name

# EC2 lists a new machine only some time after its launch; the sweep waits as long.
LISTING_S = 180.0
# The sweep needs two minutes to be sure that a node has lost its machine, and Slurm as long to power the node down.
# Then it launches another one, as soon as there is capacity.
REPLACEMENT_S = 900.0
_ALIVE = ("pending", "running")


@dataclass
class Absences:
    """Since when nodes have no machine. Any machine of a node's name counts, because the sweep replaces broken ones."""

    in_use_before: Collection[str]
    """Nodes that reported before this `up`: the sweep launches another machine for those that have been up."""
    since: dict[str, float] = field(default_factory=dict)

    def update(self, absent: Iterable[str], now: float) -> list[str]:
        """Return those of the absent nodes that will not get a machine any more."""
        self.since = {node: self.since.get(node, now) for node in absent}
        return [node for node, began in self.since.items() if now - began >= self._choose_limit(node)]

    def _choose_limit(self, node: str) -> float:
        return REPLACEMENT_S if node in self.in_use_before else LISTING_S


def find_absent(region: str, cluster: str, stack: str, nodes: Collection[str]) -> dict[str, str]:
    """Return why nodes have no machine, by node: what EC2 says about the last machine that had the name."""
    if not nodes:
        return {}
    filters = [{"Name": f"tag:{names.CLUSTER}", "Values": [cluster]}, {"Name": f"tag:{names.STACK}", "Values": [stack]}]
    pages = create_client("ec2", region).get_paginator("describe_instances").paginate(Filters=filters)
    listed = [raw for page in pages for reservation in page["Reservations"] for raw in reservation["Instances"]]
    losses = dict.fromkeys(nodes, "EC2 lists none with its name")
    # Of two with the same name, one that is alive counts, else the younger.
    for raw in sorted(listed, key=lambda raw: (raw["State"]["Name"] in _ALIVE, raw["LaunchTime"])):
        tags = {tag["Key"]: str(tag["Value"]) for tag in raw.get("Tags", [])}
        losses[read_node_name(tags, raw["AmiLaunchIndex"]) or ""] = describe_loss(raw["InstanceId"], raw)
    return {node: losses[node] for node in nodes if losses[node]}


def describe_loss(id_: str, raw: Mapping[str, Any] | None) -> str:
    """Return why a machine will not report, of what EC2 answers about it; empty if it still may."""
    if raw is None:
        return f"{id_} does not exist any more"
    state = raw["State"]["Name"]
    reason = raw.get("StateReason", {}).get("Message", "")
    return "" if state in _ALIVE else f"{id_} is {state}" + (f" ({reason})" if reason else "")
