"""How long teardown waits for a leftover that is in use: not at all if what may use it stays."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

from infra.home import Home
from infra.resources.error import ResourceError
from infra.targets.target import Deployment, Leftover, Leftovers, Target
from muster.commands import teardown

MACHINE = Leftover("machine", "m-1")
DISK = Leftover("disk", "d-1", used_by=frozenset({"machine"}))
NETWORK = Leftover("network", "n-1", used_by=frozenset({"machine", "disk"}))
ROLE = Leftover("role", "r-1", used_by=frozenset({"profile"}))


def sweep(search: Leftovers, *refused: Leftover) -> tuple[list[str], list[Leftover]]:
    """Return the errors, and the leftovers that were given time, if the removal of `refused` fails."""
    patient: list[Leftover] = []

    def remove(leftover: Leftover, until: float) -> None:
        if until > time.monotonic() + 60:
            patient.append(leftover)
        if leftover in refused:
            raise ResourceError("", f"cannot remove {leftover.name}", "try again")

    target = cast("Target", SimpleNamespace(leftovers=lambda _deployment: search, remove=remove))
    cluster = teardown._Cluster(cast("Any", Home.of({}).stack("s")), target, Deployment("demo", "s"))
    return list(teardown._sweep(cluster)), patient


def test_each_leftover_has_time_until_it_is_no_longer_in_use() -> None:
    everything = [MACHINE, DISK, NETWORK, ROLE]
    assert sweep(Leftovers(everything)) == ([], everything)


def test_nothing_is_waited_for_that_a_staying_resource_uses() -> None:
    """A machine that AWS refused to end held its disk, and teardown waited 20 minutes for it."""
    errors, patient = sweep(Leftovers([MACHINE, DISK, NETWORK, ROLE]), MACHINE)
    assert patient == [MACHINE, ROLE]
    assert len(errors) == 1
    assert "m-1" in errors[0]


def test_what_is_used_by_something_that_is_used_is_not_waited_for() -> None:
    assert sweep(Leftovers([DISK, NETWORK]), DISK)[1] == [DISK]


def test_nothing_is_waited_for_that_an_unlisted_resource_may_use() -> None:
    search = Leftovers([DISK, ROLE], ("machines because AccessDenied",), frozenset({"machine"}))
    assert sweep(search)[1] == [ROLE]
