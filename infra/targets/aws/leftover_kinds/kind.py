"""One kind of thing on AWS, and what was found of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cluster import names
from cluster.catalog.prices import service_price
from infra.targets.aws.client import client


class Account:
    """One region of an account, with the clients that were needed so far."""

    def __init__(self, region: str) -> None:
        self.region = region
        self._clients: dict[str, Any] = {}

    def ask(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = client(service, self.region)
        return self._clients[service]

    def pages(self, service: str, operation: str, key: str, **params: Any) -> Iterator[dict[str, Any]]:
        """The items under `key`, of all pages where the call has pages."""
        asked = self.ask(service)
        if not asked.can_paginate(operation):
            yield from getattr(asked, operation)(**params).get(key) or ()
            return
        for page in asked.get_paginator(operation).paginate(**params):
            yield from page.get(key) or ()

    @cached_property
    def number(self) -> str:
        found: str = self.ask("sts").get_caller_identity()["Account"]
        return found


@dataclass(frozen=True)
class Found:
    id: str
    tags: Mapping[str, str]
    created: str = ""
    usd_per_hour: float = 0.0
    stands_on: frozenset[str] = frozenset()
    """Ids of what cannot go as long as this stays."""
    within: str = ""
    """Id of what it stays with, where that stays."""

    @property
    def keep(self) -> bool:
        return names.KEEP in self.tags


Remove = Callable[[Account, str], None]


@dataclass(frozen=True)
class Kind:
    name: str
    """As a receipt says it."""
    find: Callable[[Account, str], Iterable[Found]]
    """Of the cluster of this name."""
    remove: Remove
    arns: tuple[str, ...]
    """What of the tagging service's answers this kind has looked at itself, and better: `service:type`."""

    @property
    def service(self) -> str:
        return self.arns[0].partition(":")[0]


def tags_of(listed: Iterable[Mapping[str, str]] | None) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in listed or ()}


def belongs(tags: Mapping[str, str], cluster: str) -> bool:
    return tags.get(names.CLUSTER) == cluster


def usd_per_hour(price: str, amount: float = 1.0) -> float:
    """USD per hour of so much of it."""
    return service_price(price).usd_per_hour * amount


def batches(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[first : first + size] for first in range(0, len(items), size))
