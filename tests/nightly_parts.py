"""Parts of the nightly tests, each small enough for a machine and a job of its own; together they are all tests.

    python -m tests.run --nightly --part=scenarios-1

Each layer is one part, except that of the clusters: rehearsals take most of the night. `orders` runs 20 seeds of each
order, as many as it takes until both orders of every pair of events must have occurred.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import pytest

from tests.seeds import SEEDS
from tests.seeds import VARIABLE as SEEDS_VARIABLE

VARIABLE = "MUSTER_TEST_PART"
"""Variable with the name of the part; without it, all tests of the layers are selected."""
LONGEST_MIN = 350
"""Limit of a part whose time has not been measured: a hosted machine is taken away after 360 minutes."""
_LAYERS = ("faults", "e2e", "engine")
_REHEARSALS = "tests/infra/targets/aws/rehearse/"
_SCENARIOS = f"{_REHEARSALS}test_rehearsed_scenarios.py"
_EXAMPLES = f"{_REHEARSALS}test_rehearsed_examples.py"


@dataclass(frozen=True)
class Part:
    """A part of the nightly tests."""

    layers: tuple[str, ...]
    limit_min: int
    measured_min: int | None = None
    """Sum of what its tests took one by one, on two cores with other work; None if most were not measured by night."""
    variables: Mapping[str, str] = field(default_factory=dict)


PARTS = {
    "checks": Part(("lint", "pure"), 60, measured_min=7),
    "trainer": Part(("trainer",), LONGEST_MIN),
    "engine": Part(("engine",), LONGEST_MIN),
    "faults": Part(("faults",), 60, measured_min=13),
    "clusters": Part(("e2e",), LONGEST_MIN),
    "rehearsals": Part(("e2e",), 180, measured_min=61),
    "scenarios-1": Part(("e2e",), 150, measured_min=41),
    "scenarios-2": Part(("e2e",), 150, measured_min=63),
    "examples": Part(("e2e",), LONGEST_MIN),
    "orders": Part(("pure", "e2e"), 240, measured_min=89, variables={SEEDS_VARIABLE: str(SEEDS)}),
}
"""Parts by name; the workflow has a job for each."""


def find_part(layer: str, path: str, number: int = 0) -> str:
    """Return the part of a test: by its layer and file and, of the scenarios, by its number in the file."""
    if layer in PARTS["orders"].layers and PurePosixPath(path).stem.endswith("_orders"):
        return "orders"
    if layer == "pure":
        return "checks"
    if layer != "e2e":
        return layer
    if path == _SCENARIOS:
        return f"scenarios-{number % 2 + 1}"
    if path == _EXAMPLES:
        return "examples"
    return "rehearsals" if path.startswith(_REHEARSALS) else "clusters"


def select_part(items: list[pytest.Item], part: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests of a part, and the others."""
    parts = find_parts(items)
    selected = [item for item in items if parts[item.nodeid] == part]
    return selected, [item for item in items if parts[item.nodeid] != part]


def find_parts(items: list[pytest.Item]) -> dict[str, str]:
    """Return the part of each collected test by its id."""
    numbers: dict[str, int] = {}
    parts = {}
    for item in items:
        path = item.nodeid.partition("::")[0]
        number = numbers.setdefault(path, 0)
        numbers[path] += 1
        parts[item.nodeid] = find_part(_find_layer(item, path), path, number)
    return parts


def read_part(env: Mapping[str, str] = os.environ) -> str:
    """Return the name of the part to run, empty for all; raise ValueError if there is no such part."""
    name = env.get(VARIABLE, "")
    if name and name not in PARTS:
        raise ValueError(f"{VARIABLE}: {name!r} is not a part; allowed: {', '.join(PARTS)}")
    return name


def _find_layer(item: pytest.Item, path: str) -> str:
    if path.startswith("tests/trainer/"):
        return "trainer"
    return next((layer for layer in _LAYERS if item.get_closest_marker(layer)), "pure")
