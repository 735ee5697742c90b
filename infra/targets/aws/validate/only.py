"""Fields that only a cluster on AWS can have: refused elsewhere, where they would do nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cluster.spec import Budget, ClusterSpec, Network, NodeGroup, Storage
from cluster.spec.issue import Issue, error
from cluster.spec.model import Part

GROUP = ("capacity", "ip_bandwidth")
NETWORK = ("vpc_id", "subnet_ids", "flow_logs")
STORAGE = ("throughput", "efa", "s3", "id")
BUDGET = ("notify",)


def elsewhere(spec: ClusterSpec) -> Iterator[Issue]:
    if spec.aws is not None:
        yield _refused(spec, "aws")
    for name, group in spec.groups.items():
        yield from _written(spec, f"groups.{name}", group, NodeGroup, GROUP)
    yield from _written(spec, "network", spec.network, Network, NETWORK)
    for name, storage in spec.storage.items():
        yield from _written(spec, f"storage.{name}", storage, Storage, STORAGE)
    yield from _written(spec, "budget", spec.budget, Budget, BUDGET)


def _written(spec: ClusterSpec, where: str, part: Any, kind: type[Part], fields: tuple[str, ...]) -> Iterator[Issue]:
    for field in fields:
        if getattr(part, field) != kind.model_fields[field].default:
            yield _refused(spec, f"{where}.{field}")


def _refused(spec: ClusterSpec, where: str) -> Issue:
    message = f"target '{spec.target}' cannot use it; targets that can: aws"
    return error("aws_only", where, message, "remove it, or write `target: aws`")
