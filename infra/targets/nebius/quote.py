"""The cost of a cluster by today's prices, which Nebius's calculator quotes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cluster.spec import ClusterSpec
from infra.targets.nebius.client import Cloud, open_cloud
from infra.targets.nebius.cost import list_items
from infra.targets.nebius.spec import require_section
from infra.targets.rented.cost import Item

_SERVICE, _REQUEST = "nebius.billing.v1alpha1.CalculatorService", "nebius.billing.v1alpha1.EstimateRequest"
SOURCE = "Nebius's calculator"
NOT_QUOTED = "not quoted by Nebius's calculator"


def quote_items(spec: ClusterSpec) -> tuple[Item, ...]:
    """Return the items of a spec with the prices that Nebius quotes; raise ResourceError if it does not answer."""
    with open_cloud("nebius.project") as cloud:
        return tuple(_quote(cloud, list_items(spec), require_section(spec).project))


def _quote(cloud: Cloud, items: tuple[Item, ...], project: str) -> Iterator[Item]:
    for item in items:
        if not item.resource:
            yield replace(item, usd_per_hour=None, note=NOT_QUOTED)
            continue
        resource = {kind: {**request, "metadata": {"parentId": project}} for kind, request in item.resource.items()}
        answer = cloud.call(_SERVICE, "Estimate", _REQUEST, {"resourceSpec": resource})
        cost = answer.get("hourlyCost", {}).get("general", {}).get("total", {}).get("cost")
        yield replace(item, usd_per_hour=float(cost), note="") if cost else replace(item, note=NOT_QUOTED)
