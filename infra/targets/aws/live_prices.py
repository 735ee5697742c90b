"""Today's prices of instances: on demand from the Price List API, spot from the price history of each zone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from statistics import median
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from cluster.catalog.prices import Price, instance_price
from cluster.spec import ClusterSpec
from infra.targets.aws.launcher.errors import classify_error
from infra.targets.aws.plan.capacity import purchases
from infra.targets.aws.preflight.account import Account
from infra.targets.aws.validate.types import list_type_names

SOURCE = "AWS Price List API"
SPOT_SOURCE = "EC2 spot price history"
# Only a few regions serve the price list, each for all regions.
_PRICING_REGION = "us-east-1"
_LINUX_FILTERS = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}


@dataclass(frozen=True)
class LivePrices:
    """Prices in USD per hour by instance type; calling it looks one up, with the dated table as fallback."""

    on: date
    """The day on which they were read."""
    on_demand: Mapping[str, float]
    spot: Mapping[str, float]
    problem: str = ""
    """Why some or all are missing; the dated table replaces them."""

    def __call__(self, name: str, region: str, *, spot: bool = False) -> Price | None:
        usd = (self.spot if spot else self.on_demand).get(name)
        if usd is None:
            return instance_price(name, region, spot=spot)
        return Price(usd, "hour", self.on, SPOT_SOURCE if spot else SOURCE, True, region)

    @property
    def available(self) -> bool:
        return bool(self.on_demand)


def fetch_live_prices(spec: ClusterSpec, account: Account) -> LivePrices:
    """Return today's prices of the instance types in a spec; an error is reported in `problem`, never raised."""
    now, types = datetime.now(UTC), sorted(set(list_type_names(spec).values()))
    on_demand: dict[str, float] = {}
    spot: dict[str, float] = {}
    problem = ""
    try:
        for name in types:
            # An error must not lose the prices that were read before it.
            if (usd := _fetch_on_demand(account.client("pricing", _PRICING_REGION), name, account.region)) is not None:
                on_demand[name] = usd
        if spot_types := _list_spot_types(spec):
            spot = _fetch_spot(account.client("ec2"), spot_types, now)
    except (ClientError, BotoCoreError) as error:
        call = f"{error.operation_name}: " if isinstance(error, ClientError) else ""
        problem = f"{call}{classify_error(error).code}"
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        problem = f"unexpected response from AWS: {error!r}"
    if not problem and (missing := [name for name in types if name not in on_demand]):
        problem = f"the price list has no {', '.join(missing)}"
    return LivePrices(now.date(), on_demand, spot, problem)


def read_usd_per_hour(product: Mapping[str, Any]) -> float | None:
    """Return the USD per hour of an entry of the price list; None if it is not billed by the hour."""
    terms = product.get("terms", {}).get("OnDemand", {})
    for term in terms.values():
        for dimension in term["priceDimensions"].values():
            usd = float(dimension["pricePerUnit"].get("USD", 0))
            if dimension["unit"] == "Hrs" and usd:
                return usd
    return None


def _fetch_on_demand(pricing: Any, name: str, region: str) -> float | None:
    attributes = {"instanceType": name, "regionCode": region, **_LINUX_FILTERS}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in attributes.items()]
    answer = pricing.get_products(ServiceCode="AmazonEC2", Filters=filters, MaxResults=10)
    prices = (read_usd_per_hour(json.loads(text)) for text in answer["PriceList"])
    return next((usd for usd in prices if usd is not None), None)


def _fetch_spot(ec2: Any, types: list[str], now: datetime) -> dict[str, float]:
    """Return the median over the zones; a query for the current time returns the latest price of each zone."""
    pages = ec2.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=types, ProductDescriptions=["Linux/UNIX"], StartTime=now, EndTime=now
    )
    return compute_median_prices(entry for page in pages for entry in page["SpotPriceHistory"])


def compute_median_prices(entries: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return, by instance type, the median over the zones of the latest price in each."""
    latest: dict[tuple[str, str], tuple[datetime, float]] = {}
    for entry in entries:
        key, at = (entry["InstanceType"], entry["AvailabilityZone"]), entry["Timestamp"]
        if key not in latest or latest[key][0] < at:
            latest[key] = (at, float(entry["SpotPrice"]))
    types = {name for name, _ in latest}
    return {name: median(usd for (type_, _), (_, usd) in latest.items() if type_ == name) for name in types}


def _list_spot_types(spec: ClusterSpec) -> list[str]:
    groups = [group for group in spec.groups.values() if "spot" in purchases(group)]
    return sorted({name for group in groups for name in (group.instance_type or "", *group.capacity.fallback_types)})
