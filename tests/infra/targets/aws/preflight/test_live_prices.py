"""Prices of today: read out of the price list and the spot history, the table where AWS does not tell."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cluster.catalog.prices import instance_price
from infra.targets.aws import live_prices
from infra.targets.aws.cost import cost
from tests.infra.targets.aws.preflight.conftest import Answered
from tests.infra.targets.aws.specs import group, spec

SPOT = group(instance_type="g6.8xlarge", capacity={"kind": "spot", "fallback": ["on-demand"]})
TYPES = {"m7i.xlarge": "0.25", "m7i.large": "0.15", "g6.8xlarge": "2.5"}


def product(usd: str, unit: str = "Hrs") -> dict[str, Any]:
    dimensions = {"a.b.c": {"unit": unit, "pricePerUnit": {"USD": usd}}}
    return {"product": {}, "terms": {"OnDemand": {"a.b": {"priceDimensions": dimensions}}}}


def products(params: dict[str, Any]) -> dict[str, Any]:
    asked = {one["Field"]: one["Value"] for one in json.loads(params["body"])["Filters"]}
    assert asked["regionCode"] == "us-east-1"
    assert asked["operatingSystem"] == "Linux"
    usd = TYPES.get(asked["instanceType"])
    return {"PriceList": [json.dumps(product("0.0")), json.dumps(product(usd))] if usd else []}


def history(*prices: float) -> dict[str, Any]:
    now = datetime.now(UTC)
    entries = [
        {
            "InstanceType": "g6.8xlarge",
            "AvailabilityZone": f"us-east-1{letter}",
            "SpotPrice": str(usd),
            "Timestamp": now,
        }
        for letter, usd in zip("abc", prices, strict=False)
    ]
    old = {**entries[0], "SpotPrice": "99", "Timestamp": now - timedelta(hours=1)}
    return {"SpotPriceHistory": [*entries, old]}


def test_the_hourly_price_of_a_product() -> None:
    assert live_prices.read_usd_per_hour(product("2.0144")) == 2.0144
    assert live_prices.read_usd_per_hour(product("0.0000000000")) is None
    assert live_prices.read_usd_per_hour(product("5.0", unit="Quantity")) is None
    assert live_prices.read_usd_per_hour({"terms": {"Reserved": {}}}) is None


def test_what_a_cluster_costs_today(answered: Answered) -> None:
    answered.answer("pricing", "GetProducts", products)
    answered.answer("ec2", "DescribeSpotPriceHistory", history(1.0, 3.0, 2.0))
    described = spec(groups=SPOT)
    live = live_prices.fetch_live_prices(described, answered.account)
    assert (live.available, live.problem) == (True, "")
    assert live.spot == {"g6.8xlarge": 2.0}
    priced = {line.part + line.what: line for line in cost(described, live, live.on).lines}
    assert priced["controllerm7i.xlarge"].usd_per_hour == 0.25
    nodes = priced["groups.gpug6.8xlarge, spot, then on-demand"]
    assert (nodes.usd_per_hour_min, nodes.usd_per_hour) == (2 * 2.0, 2 * 2.5)
    assert cost(described, live, live.on).priced_on == datetime.now(UTC).date()


def test_spot_is_asked_for_only_where_it_is_bought(answered: Answered) -> None:
    answered.answer("pricing", "GetProducts", products)
    live_prices.fetch_live_prices(spec(groups=group(instance_type="g6.8xlarge")), answered.account)
    assert {operation for operation, _ in answered.asked} == {"GetProducts"}


def test_a_type_that_the_list_lacks_has_the_price_of_the_table(answered: Answered) -> None:
    answered.answer("pricing", "GetProducts", products)
    live = live_prices.fetch_live_prices(spec(), answered.account)
    assert live.problem == "the price list has no p5.48xlarge"
    assert live("p5.48xlarge", "us-east-1") == instance_price("p5.48xlarge", "us-east-1")
    assert live("m7i.large", "us-east-1") != instance_price("m7i.large", "us-east-1")


def test_a_refusal_leaves_the_table(answered: Answered) -> None:
    answered.refuse("pricing", "GetProducts", "AccessDeniedException")
    live = live_prices.fetch_live_prices(spec(), answered.account)
    assert (live.available, live.problem) == (False, "GetProducts: AccessDeniedException")
    assert cost(spec(), live).lines == cost(spec()).lines


def test_what_was_told_before_a_refusal_stays_told(answered: Answered) -> None:
    """Throttling at the third type must not price the whole cluster by the old table."""
    said = iter([products, products])

    def throttled(params: dict[str, Any]) -> dict[str, Any]:
        return next(said, lambda _: {"PriceList": ["no JSON"]})(params)

    answered.answer("pricing", "GetProducts", throttled)
    live = live_prices.fetch_live_prices(spec(groups=SPOT), answered.account)
    assert live.available
    assert len(live.on_demand) == 2
    assert live.problem.startswith("unexpected response from AWS: JSONDecodeError")


@pytest.mark.parametrize("text", ["3", '{"terms": 3}', '{"terms": {"OnDemand": {"a": {}}}}', "no JSON"])
def test_an_odd_answer_leaves_the_table(answered: Answered, text: str) -> None:
    answered.answer("pricing", "GetProducts", {"PriceList": [text]})
    live = live_prices.fetch_live_prices(spec(), answered.account)
    assert not live.available
    assert "unexpected response from AWS" in live.problem
