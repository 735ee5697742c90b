"""The kind of an AWS resource (how to list and remove it), and a resource that a search returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cluster import names
from cluster.catalog.prices import service_price
from infra.targets.aws.client import create_client


class AccountRegion:
    """A region of an account, with the clients that were needed so far."""

    def __init__(self, region: str) -> None:
        self.region = region
        self._clients: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = create_client(service, self.region)
        return self._clients[service]

    def list_items(self, service: str, operation: str, key: str, **params: Any) -> Iterator[dict[str, Any]]:
        """Yield the items under `key`, from all pages if the call is paginated."""
        client = self.client(service)
        if not client.can_paginate(operation):
            yield from getattr(client, operation)(**params).get(key) or ()
            return
        for page in client.get_paginator(operation).paginate(**params):
            yield from page.get(key) or ()

    @cached_property
    def account_id(self) -> str:
        account: str = self.client("sts").get_caller_identity()["Account"]
        return account


@dataclass(frozen=True)
class ClusterResource:
    """An existing resource that belongs to the cluster."""

    id: str
    tags: Mapping[str, str]
    created: str = ""
    """ISO 8601 time; empty if the service does not report it."""
    usd_per_hour: float = 0.0
    requires: frozenset[str] = frozenset()
    """Ids of resources that cannot be removed while this one exists."""
    parent: str = ""
    """Id of a resource that this one must stay with; empty if there is none."""

    @property
    def keep(self) -> bool:
        return names.KEEP in self.tags


RemoveResource = Callable[[AccountRegion, str], None]


@dataclass(frozen=True)
class ResourceKind:
    """A kind of resource: how to list those of a cluster and how to remove them."""

    name: str
    """As the teardown receipt prints it."""
    find: Callable[[AccountRegion, str], Iterable[ClusterResource]]
    """Lists the resources of the cluster with the given name."""
    remove: RemoveResource
    arn_types: tuple[str, ...]
    """Resource types (`service:type`) that `find` covers, so that results of the tagging service are skipped."""

    @property
    def service(self) -> str:
        return self.arn_types[0].partition(":")[0]


def read_tags(tag_list: Iterable[Mapping[str, str]] | None) -> dict[str, str]:
    """Return AWS's list of keys and values as a mapping."""
    return {tag["Key"]: tag["Value"] for tag in tag_list or ()}


def has_cluster_tag(tags: Mapping[str, str], cluster: str) -> bool:
    """Return whether the tags name the cluster as the owner."""
    return tags.get(names.CLUSTER) == cluster


def compute_usd_per_hour(price: str, amount: float = 1.0) -> float:
    """Return the USD per hour of an amount, by the price of that name in the catalog."""
    return service_price(price).usd_per_hour * amount


def split_batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Yield the items in batches of at most `size`."""
    return (items[first : first + size] for first in range(0, len(items), size))
