"""The cost of a cluster by today's prices, which Azure publishes for everybody."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from cluster.spec import ClusterSpec
from infra.resources.error import ResourceError
from infra.targets.azure.client import LOOPBACK
from infra.targets.azure.cost import list_items
from infra.targets.rented.cost import Item

ENDPOINT = "https://prices.azure.com"
PATH = "/api/retail/prices"
API = "2023-01-01-preview"
SOURCE = "Azure's retail price list"
NOT_LISTED = "not asked for"
TIMEOUT_S = 20.0
# Prices of the same size that are for other systems, or for machines that Azure may take back.
_OTHER_WORDS = ("Windows", "Spot", "Low Priority", "CloudServices")


def quote_items(spec: ClusterSpec) -> tuple[Item, ...]:
    """Return the items of a spec with the prices that Azure publishes; raise ResourceError if they cannot be read."""
    try:
        return tuple(_quote(list_items(spec)))
    except (URLError, OSError, ValueError, KeyError) as error:
        fix = f"check the connection to {ENDPOINT}, then run it again"
        raise ResourceError("azure.region", f"the price list cannot be read: {error}", fix) from None


def choose_price(listed: list[Mapping[str, Any]]) -> float | None:
    """Return the price of an hour on Linux among all of a size; None if there is none."""
    prices = [
        float(entry["retailPrice"])
        for entry in listed
        if entry.get("unitOfMeasure") == "1 Hour"
        and not any(word in f"{entry.get('productName')} {entry.get('skuName')}" for word in _OTHER_WORDS)
    ]
    return max(prices, default=None)


def _quote(items: tuple[Item, ...]) -> Iterator[Item]:
    price_by_size: dict[str, float | None] = {}
    for item in items:
        if not item.resource:
            yield replace(item, note=NOT_LISTED)
            continue
        if item.what not in price_by_size:
            price_by_size[item.what] = choose_price(_ask(item.resource))
        price = price_by_size[item.what]
        yield replace(item, usd_per_hour=price, note="") if price is not None else item


def _ask(resource: Mapping[str, str]) -> list[Mapping[str, Any]]:
    conditions = {**resource, "serviceName": "Virtual Machines", "priceType": "Consumption"}
    filter_ = " and ".join(f"{name} eq '{value}'" for name, value in conditions.items())
    port = os.environ.get(LOOPBACK)
    base = f"http://127.0.0.1:{int(port)}" if port else ENDPOINT
    with urlopen(f"{base}{PATH}?{urlencode({'api-version': API, '$filter': filter_})}", timeout=TIMEOUT_S) as answer:  # noqa: S310
        listed: list[Mapping[str, Any]] = json.load(answer)["Items"]
        return listed
