"""Dated prices of instances (by region, on demand and spot) and of the other services that a cluster uses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import yaml

HOURS_PER_MONTH = 730
DATA = Path(__file__).with_name("data")


@dataclass(frozen=True)
class Price:
    """A price with its origin."""

    usd: float
    unit: str
    """`hour`, `month`, `GB-month` or `GB`."""
    on: date
    """Date on which it was looked up."""
    source: str
    verified: bool
    """Whether it was read at the source; if not, it is an estimate from experience."""
    region: str
    """Region of the price, which may differ from the requested one."""

    @property
    def usd_per_hour(self) -> float:
        """Return the price of an hour; monthly prices are spread over the hours of a month."""
        return self.usd if self.unit == "hour" else self.usd / HOURS_PER_MONTH


def instance_price(name: str, region: str, *, spot: bool = False) -> Price | None:
    """Return the price of an instance hour; None if it is not in the table. Spot: median of the zones on one day."""
    table = _instance_prices()
    prices = table["prices"].get(name, {}).get(region)
    usd = prices[spot] if prices else None
    if usd is None:
        return None
    return Price(usd, "hour", date.fromisoformat(table["date"]), table["source"], True, region)


def service_price(name: str) -> Price:
    """Return the price of a service in the region of the table (there is only one)."""
    table = _service_prices()
    entry = table["prices"][name]
    return Price(entry["usd"], entry["unit"], entry["date"], entry["source"], entry["verified"], table["region"])


def instances_priced_on() -> date:
    """Return the date of the table of instance prices."""
    return date.fromisoformat(_instance_prices()["date"])


@cache
def _instance_prices() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((DATA / "instance_prices.json").read_text())
    return table


@cache
def _service_prices() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load((DATA / "service_prices.yaml").read_text())
    return table
