"""Tables of bad specs: changes to a small valid spec, and the exact messages that they must produce."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.spec.stack_file import Loader
from infra.targets.registry import targets


@dataclass(frozen=True)
class BadSpec:
    """A row of a table: a bad spec, the codes of its issues and the text of the error."""

    title: str
    data: dict[Any, Any]
    codes: list[str]
    expected_text: str


def valid_spec() -> dict[Any, Any]:
    return {"name": "demo", "target": "local", "groups": {"gpu": {"count": 2}}}


def read_table(name: str) -> list[BadSpec]:
    """Return the rows of a table in this folder."""
    rows = yaml.safe_load(Path(__file__).with_name(name).read_text())
    return [BadSpec(row["title"], _data(row), row["codes"], row["says"].rstrip("\n")) for row in rows]


def _data(row: dict[str, Any]) -> dict[Any, Any]:
    if "whole" in row:
        return dict(yaml.load(row["whole"], Loader))
    change = yaml.load(row["spec"], Loader)
    # Only a spec of this target may have its section.
    owners = [name for name in targets() if name in change]
    return {**valid_spec(), **({"target": owners[0]} if owners else {}), **change}
