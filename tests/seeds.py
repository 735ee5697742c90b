"""Seeds of the tests that draw an order: a few every night, all of them in turn, or those of MUSTER_TEST_SEEDS.

MUSTER_TEST_SEEDS=20 make test-nightly    seeds 1 to 20 of every order
MUSTER_TEST_SEEDS=7-7 pytest ...          repeats seed 7
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

VARIABLE = "MUSTER_TEST_SEEDS"
SEEDS = 20
"""Number of seeds after which both orders of every pair of events must have occurred."""
# Repeats the tests of a night that failed: its number, as in `date.toordinal()`.
NIGHT = "MUSTER_TEST_NIGHT"


def list_seeds(by_night: int) -> list[int]:
    """Return the seeds to run: those of MUSTER_TEST_SEEDS, or `by_night` of the first 20, others every night."""
    chosen = os.environ.get(VARIABLE, "")
    if not chosen:
        night = read_night()
        return [(night * by_night + number) % SEEDS + 1 for number in range(by_night)]
    parts = re.fullmatch(r"(?:(\d+)-)?(\d+)", chosen)
    first, last = (int(parts[1] or 1), int(parts[2])) if parts else (0, 0)
    if not 1 <= first <= last:
        raise ValueError(f"{VARIABLE}: {chosen!r} is not allowed; allowed: a number of seeds (20) or a range (3-7)")
    return list(range(first, last + 1))


def read_night() -> int:
    """Return the number of this night, or of the night that MUSTER_TEST_NIGHT repeats."""
    return int(os.environ.get(NIGHT) or datetime.now(UTC).toordinal())


def check_orders(orders: Mapping[int, Sequence[str]], pairs: Sequence[tuple[str, str]], different: int) -> None:
    """Assert that the events of many seeds really happened in different orders; fewer than 20 seeds prove nothing.

    `pairs` are events of which each must have come first in at least one seed. The seeds must have at
    least `different` orders; seeds with the same order count once.
    """
    print(f"{len(set(map(tuple, orders.values())))} different orders in {len(orders)} seeds")
    if len(orders) < SEEDS:
        return
    for first, second in pairs:
        came_first = {
            order.index(first) < order.index(second) for order in orders.values() if first in order and second in order
        }
        assert came_first == {True, False}, f"{first!r} and {second!r} came in the same order in all seeds"
    assert len(set(map(tuple, orders.values()))) >= different
