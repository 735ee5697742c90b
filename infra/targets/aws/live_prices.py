"""What instances cost today: on demand by the Price List API, spot by what was paid in each zone last."""

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
from infra.targets.aws.validate.types import named

SOURCE = "AWS Price List API"
SPOT_SOURCE = "EC2 spot price history"
# The price list is served from few regions, for all of them.
_ENDPOINT = "us-east-1"
_LINUX = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}


@dataclass(frozen=True)
class LivePrices:
    on: date
    on_demand: Mapping[str, float]
    spot: Mapping[str, float]
    problem: str = ""
    """Why some or all are missing; the dated table stands in for them."""

    def __call__(self, name: str, region: str, *, spot: bool = False) -> Price | None:
        usd = (self.spot if spot else self.on_demand).get(name)
        if usd is None:
            return instance_price(name, region, spot=spot)
        return Price(usd, "hour", self.on, SPOT_SOURCE if spot else SOURCE, True, region)

    @property
    def known(self) -> bool:
        return bool(self.on_demand)


def live_prices(spec: ClusterSpec, account: Account) -> LivePrices:
    """Never raises: a price that AWS does not tell is one of the table's."""
    now, types = datetime.now(UTC), sorted(set(named(spec).values()))
    on_demand: dict[str, float] = {}
    spot: dict[str, float] = {}
    problem = ""
    try:
        for name in types:
            # One by one: those that were told before a refusal stay told.
            if (usd := _on_demand(account.client("pricing", _ENDPOINT), name, account.region)) is not None:
                on_demand[name] = usd
        if wanted := _bought_as_spot(spec):
            spot = _spot(account.client("ec2"), wanted, now)
    except (ClientError, BotoCoreError) as failure:
        call = f"{failure.operation_name}: " if isinstance(failure, ClientError) else ""
        problem = f"{call}{classify_error(failure).code}"
    except (LookupError, TypeError, ValueError, AttributeError) as odd:
        problem = f"an answer of AWS in another shape: {odd!r}"
    if not problem and (missing := [name for name in types if name not in on_demand]):
        problem = f"the price list has no {', '.join(missing)}"
    return LivePrices(now.date(), on_demand, spot, problem)


def hourly(product: Mapping[str, Any]) -> float | None:
    """USD of one entry of the price list; None for what is not paid by the hour."""
    terms = product.get("terms", {}).get("OnDemand", {})
    for term in terms.values():
        for dimension in term["priceDimensions"].values():
            usd = float(dimension["pricePerUnit"].get("USD", 0))
            if dimension["unit"] == "Hrs" and usd:
                return usd
    return None


def _on_demand(pricing: Any, name: str, region: str) -> float | None:
    asked = {"instanceType": name, "regionCode": region, **_LINUX}
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in asked.items()]
    answer = pricing.get_products(ServiceCode="AmazonEC2", Filters=filters, MaxResults=10)
    found = (hourly(json.loads(text)) for text in answer["PriceList"])
    return next((usd for usd in found if usd is not None), None)


def _spot(ec2: Any, types: list[str], now: datetime) -> dict[str, float]:
    """The median over the zones of what it costs now: the moment asked for brings the last change of each zone."""
    pages = ec2.get_paginator("describe_spot_price_history").paginate(
        InstanceTypes=types, ProductDescriptions=["Linux/UNIX"], StartTime=now, EndTime=now
    )
    return middle(entry for page in pages for entry in page["SpotPriceHistory"])


def middle(entries: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    latest: dict[tuple[str, str], tuple[datetime, float]] = {}
    for entry in entries:
        key, at = (entry["InstanceType"], entry["AvailabilityZone"]), entry["Timestamp"]
        if key not in latest or latest[key][0] < at:
            latest[key] = (at, float(entry["SpotPrice"]))
    types = {name for name, _ in latest}
    return {name: median(usd for (one, _), (_, usd) in latest.items() if one == name) for name in types}


def _bought_as_spot(spec: ClusterSpec) -> list[str]:
    return sorted({group.instance_type or "" for group in spec.groups.values() if "spot" in purchases(group)})
