"""Reads the tables of bad specs: text laid over a small good spec, and what has to be said about it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.spec.stack_file import Loader


@dataclass(frozen=True)
class Bad:
    title: str
    data: dict[Any, Any]
    codes: list[str]
    says: str


def good() -> dict[Any, Any]:
    return {"name": "demo", "target": "local", "groups": {"gpu": {"count": 2}}}


def bad_specs(name: str) -> list[Bad]:
    rows = yaml.safe_load(Path(__file__).with_name(name).read_text())
    return [Bad(row["title"], _data(row), row["codes"], row["says"].rstrip("\n")) for row in rows]


def _data(row: dict[str, Any]) -> dict[Any, Any]:
    if "whole" in row:
        return dict(yaml.load(row["whole"], Loader))  # noqa: S506
    return {**good(), **yaml.load(row["spec"], Loader)}  # noqa: S506
