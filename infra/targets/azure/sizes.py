"""Sizes of virtual machines by sizes.yaml: their hardware and dated prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import yaml

_TABLE = Path(__file__).with_name("sizes.yaml")


@dataclass(frozen=True)
class Size:
    """The hardware of a size, and USD per hour by region."""

    cpus: int
    memory_gb: int
    gpus: int
    infiniband: bool
    prices: Mapping[str, float]


@cache
def read_sizes() -> Mapping[str, Size]:
    """Return the sizes that a spec can name."""
    return {name: Size(**facts) for name, facts in _read_table()["sizes"].items()}


def read_price_date() -> date:
    """Return the day of the prices."""
    on: date = _read_table()["date"]
    return on


@cache
def _read_table() -> dict[str, Any]:
    table: dict[str, Any] = yaml.safe_load(_TABLE.read_text())
    return table
