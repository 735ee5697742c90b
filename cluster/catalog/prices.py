"""Dated prices: of instances by region, on demand and spot, and of everything else a cluster is made of."""

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
    usd: float
    unit: str
    """hour, month, GB-month or GB."""
    on: date
    """When it was looked up."""
    source: str
    verified: bool
    """False: nobody could look it up, it is known from experience."""
    region: str
    """The region it holds for; may be another one than was asked for."""

    @property
    def usd_per_hour(self) -> float:
        """Return the price of an hour; monthly prices are spread over the hours of a month."""
        return self.usd if self.unit == "hour" else self.usd / HOURS_PER_MONTH


def instance_price(name: str, region: str, *, spot: bool = False) -> Price | None:
    """What an hour costs; None where the table does not say. Spot prices move: they are the median of one day."""
    table = _instance_prices()
    known = table["prices"].get(name, {}).get(region)
    usd = known[spot] if known else None
    if usd is None:
        return None
    return Price(usd, "hour", date.fromisoformat(table["date"]), table["source"], True, region)


def service_price(name: str) -> Price:
    """Of the one region whose prices the table has."""
    table = _service_prices()
    entry = table["prices"][name]
    return Price(entry["usd"], entry["unit"], entry["date"], entry["source"], entry["verified"], table["region"])


def instances_priced_on() -> date:
    return date.fromisoformat(_instance_prices()["date"])


@cache
def _instance_prices() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((DATA / "instance_prices.json").read_text())
    return read


@cache
def _service_prices() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((DATA / "service_prices.yaml").read_text())
    return read
