"""How long teardown waits for a leftover that is in use: not at all if what may use it stays."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from infra.home import Home
from infra.resources.error import InUseError, ResourceError
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
        if until > time.monotonic() + 30:
            patient.append(leftover)
        if leftover in refused:
            raise ResourceError("", f"cannot remove {leftover.name}", "try again")

    return teardown._sweep(make_cluster(lambda _deployment: search, remove)), patient


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


def test_what_is_listed_late_is_removed_too() -> None:
    """AWS listed the disk of a new machine before the machine, and teardown waited 20 minutes for the disk."""
    listings = [[DISK, NETWORK], [MACHINE, DISK, NETWORK]]
    removed: list[Leftover] = []

    def list_leftovers(_deployment: Deployment) -> Leftovers:
        listing = listings.pop(0) if listings else [MACHINE, DISK, NETWORK]
        return Leftovers([leftover for leftover in listing if leftover not in removed])

    def remove(leftover: Leftover, until: float) -> None:
        assert until <= time.monotonic() + 60, "so that the machine is listed soon"
        if leftover is not MACHINE and MACHINE not in removed:
            raise InUseError("", f"{leftover.name} is in use", "wait")
        removed.append(leftover)

    assert teardown._sweep(make_cluster(list_leftovers, remove)) == []
    assert removed == [MACHINE, DISK, NETWORK]


def test_what_stays_in_use_is_reported_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teardown, "_SWEEP_TIMEOUT_S", 0.2)
    attempts = []

    def remove(leftover: Leftover, until: float) -> None:
        attempts.append(until)
        time.sleep(0.05)
        raise InUseError("", f"{leftover.name} is in use", "wait")

    errors = teardown._sweep(make_cluster(lambda _deployment: Leftovers([DISK]), remove))
    assert errors == ["d-1 is in use. Fix: wait."]
    assert len(attempts) > 1
    assert max(attempts) - min(attempts) < 0.01, "no round may reach beyond the deadline"


def make_cluster(
    leftovers: Callable[[Deployment], Leftovers], remove: Callable[[Leftover, float], None]
) -> teardown._Cluster:
    target = cast("Target", SimpleNamespace(leftovers=leftovers, remove=remove))
    return teardown._Cluster(cast("Any", Home.of({}).stack("s")), target, Deployment("demo", "s"))
