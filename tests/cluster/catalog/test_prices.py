"""Prices: each has a date and a source, and an unknown price is None."""

from __future__ import annotations

import csv
import io
import json
from datetime import date

import pytest
import yaml

from cluster.catalog import refresh
from cluster.catalog.instances import all_types
from cluster.catalog.prices import DATA, instance_price, instances_priced_on, service_price

SERVICES = list(yaml.safe_load((DATA / "service_prices.yaml").read_text())["prices"])
TABLE = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone
p5.48xlarge,H100,8.0,192.0,2048.0,,55.04,20.00,us-east-1,use1-az1
p5.48xlarge,H100,8.0,192.0,2048.0,,55.04,22.00,us-east-1,use1-az2
p5.48xlarge,H100,8.0,192.0,2048.0,,55.04,1.00,us-east-1,use1-atl2-az1
p5.48xlarge,H100,8.0,192.0,2048.0,,68.8,,us-west-1,usw1-az1
p5.48xlarge,H100,8.0,192.0,2048.0,,99.0,9.0,sa-east-1,sae1-az1
a1.large,,,2.0,4.0,,0.0642,0.064200,us-east-1,use1-az1
m7g.metal,,,64.0,256.0,,2.6,1.0,us-east-1,use1-az1
"""


def test_prices_of_instances() -> None:
    price = instance_price("p5en.48xlarge", "us-east-1")
    assert price is not None
    assert (price.usd, price.unit, price.verified) == (63.296, "hour", True)
    assert price.on == instances_priced_on()
    spot = instance_price("p5en.48xlarge", "us-east-1", spot=True)
    assert spot is not None
    assert 20 < spot.usd < price.usd


def test_an_unknown_price_is_none() -> None:
    assert instance_price("p5e.48xlarge", "us-east-1") is None
    assert instance_price("p5.48xlarge", "eu-central-1") is None
    assert instance_price("p5.48xlarge", "ap-northeast-2", spot=True) is None


def test_every_price_belongs_to_a_type_of_the_catalog() -> None:
    assert set(json.loads((DATA / "instance_prices.json").read_text())["prices"]) <= set(all_types())


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_price_has_a_date_and_a_source(name: str) -> None:
    price = service_price(name)
    assert price.usd > 0
    assert date(2026, 1, 1) <= price.on
    assert "." in price.source
    assert price.unit in ("hour", "month", "GB-month", "GB")
    assert price.region == "us-east-1"


def test_the_generator_parses_the_price_table() -> None:
    table = json.loads(refresh.render_prices("2026-08-22", csv.DictReader(io.StringIO(TABLE))))
    assert table["prices"] == {"p5.48xlarge": {"us-east-1": [55.04, 21.0], "us-west-1": [68.8, None]}}
    assert table["date"] == "2026-08-22"
