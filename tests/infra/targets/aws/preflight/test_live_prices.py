"""Live prices from the price list and the spot history, with the price table as the fallback."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cluster.catalog.prices import instance_price
from infra.targets.aws import live_prices
from infra.targets.aws.cost import cost
from tests.infra.targets.aws.preflight.conftest import CannedAws
from tests.infra.targets.aws.specs import group, spec

SPOT = group(instance_type="g6.8xlarge", capacity={"kind": "spot", "fallback": ["on-demand"]})
TYPES = {"m7i.xlarge": "0.25", "m7i.large": "0.15", "g6.8xlarge": "2.5"}


def product(usd: str, unit: str = "Hrs") -> dict[str, Any]:
    dimensions = {"a.b.c": {"unit": unit, "pricePerUnit": {"USD": usd}}}
    return {"product": {}, "terms": {"OnDemand": {"a.b": {"priceDimensions": dimensions}}}}


def products(params: dict[str, Any]) -> dict[str, Any]:
    filters = {entry["Field"]: entry["Value"] for entry in json.loads(params["body"])["Filters"]}
    assert filters["regionCode"] == "us-east-1"
    assert filters["operatingSystem"] == "Linux"
    usd = TYPES.get(filters["instanceType"])
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


def test_hourly_price_is_read_from_a_product() -> None:
    assert live_prices.read_usd_per_hour(product("2.0144")) == 2.0144
    assert live_prices.read_usd_per_hour(product("0.0000000000")) is None
    assert live_prices.read_usd_per_hour(product("5.0", unit="Quantity")) is None
    assert live_prices.read_usd_per_hour({"terms": {"Reserved": {}}}) is None


def test_cost_uses_live_prices(canned_aws: CannedAws) -> None:
    canned_aws.answer("pricing", "GetProducts", products)
    canned_aws.answer("ec2", "DescribeSpotPriceHistory", history(1.0, 3.0, 2.0))
    described = spec(groups=SPOT)
    live = live_prices.fetch_live_prices(described, canned_aws.account)
    assert (live.available, live.problem) == (True, "")
    assert live.spot == {"g6.8xlarge": 2.0}
    priced = {line.part + line.what: line for line in cost(described, live, live.on).lines}
    assert priced["controllerm7i.xlarge"].usd_per_hour == 0.25
    nodes = priced["groups.gpug6.8xlarge, spot, then on-demand"]
    assert (nodes.usd_per_hour_min, nodes.usd_per_hour) == (2 * 2.0, 2 * 2.5)
    assert cost(described, live, live.on).priced_on == datetime.now(UTC).date()


def test_spot_prices_are_fetched_only_for_spot_groups(canned_aws: CannedAws) -> None:
    canned_aws.answer("pricing", "GetProducts", products)
    live_prices.fetch_live_prices(spec(groups=group(instance_type="g6.8xlarge")), canned_aws.account)
    assert {operation for operation, _ in canned_aws.requests} == {"GetProducts"}


def test_a_type_missing_from_the_price_list_falls_back_to_the_table(canned_aws: CannedAws) -> None:
    canned_aws.answer("pricing", "GetProducts", products)
    live = live_prices.fetch_live_prices(spec(), canned_aws.account)
    assert live.problem == "the price list has no p5.48xlarge"
    assert live("p5.48xlarge", "us-east-1") == instance_price("p5.48xlarge", "us-east-1")
    assert live("m7i.large", "us-east-1") != instance_price("m7i.large", "us-east-1")


def test_a_denied_price_list_falls_back_to_the_table(canned_aws: CannedAws) -> None:
    canned_aws.refuse("pricing", "GetProducts", "AccessDeniedException")
    live = live_prices.fetch_live_prices(spec(), canned_aws.account)
    assert (live.available, live.problem) == (False, "GetProducts: AccessDeniedException")
    assert cost(spec(), live).lines == cost(spec()).lines


def test_prices_fetched_before_a_failure_are_kept(canned_aws: CannedAws) -> None:
    """A failure at the third type must not make the whole cluster fall back to the table."""
    answers = iter([products, products])

    def fail_after_two(params: dict[str, Any]) -> dict[str, Any]:
        return next(answers, lambda _: {"PriceList": ["no JSON"]})(params)

    canned_aws.answer("pricing", "GetProducts", fail_after_two)
    live = live_prices.fetch_live_prices(spec(groups=SPOT), canned_aws.account)
    assert live.available
    assert len(live.on_demand) == 2
    assert live.problem.startswith("unexpected response from AWS: JSONDecodeError")


@pytest.mark.parametrize("text", ["3", '{"terms": 3}', '{"terms": {"OnDemand": {"a": {}}}}', "no JSON"])
def test_an_unexpected_response_falls_back_to_the_table(canned_aws: CannedAws, text: str) -> None:
    canned_aws.answer("pricing", "GetProducts", {"PriceList": [text]})
    live = live_prices.fetch_live_prices(spec(), canned_aws.account)
    assert not live.available
    assert "unexpected response from AWS" in live.problem
