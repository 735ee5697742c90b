"""What teardown does with leftovers that are in use, listed late or refused; the clock is not the real one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from infra.engine.stop import Stop
from infra.home import Home
from infra.receipt import Item, Receipt
from infra.resources.error import InUseError, ResourceError
from infra.targets.target import Deployment, Leftover, Leftovers, Target
from muster.commands import teardown

MACHINE = Leftover("machine", "m-1")
OTHER_MACHINE = Leftover("machine", "m-2")
DISK = Leftover("disk", "d-1", used_by=frozenset({"machine"}))
OTHER_DISK = Leftover("disk", "d-2", used_by=frozenset({"machine"}))
NETWORK = Leftover("network", "n-1", used_by=frozenset({"machine", "disk"}))
CLOSE_TO = 5


@dataclass
class Cloud:
    """Resources that may be refused, listed late, or in use by others until these are removed or for some seconds."""

    resources: list[Leftover]
    refused: tuple[Leftover, ...] = ()
    unseen_kinds: frozenset[str] = frozenset()
    listed_at: dict[Leftover, float] = field(default_factory=dict)
    users: dict[Leftover, Leftover] = field(default_factory=dict)
    free_at: dict[Leftover, float] = field(default_factory=dict)
    now: float = 0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def leftovers(self, _deployment: Deployment) -> Leftovers:
        self.now += 1
        listed = [each for each in self.resources if self.listed_at.get(each, 0) <= self.now]
        return Leftovers(listed, tuple(self.unseen_kinds), self.unseen_kinds)

    def remove(self, leftover: Leftover, until: float) -> None:
        if leftover in self.refused:
            raise ResourceError("", f"{leftover.name} is refused", "ask")
        if self.users.get(leftover) in self.resources:
            self.now = max(self.now, until)
            raise InUseError("", f"{leftover.name} is in use", "wait")
        if self.free_at.get(leftover, 0) > max(self.now, until):
            self.now = max(self.now, until)
            raise InUseError("", f"{leftover.name} is in use", "wait")
        self.now = max(self.now, self.free_at.get(leftover, 0))
        self.resources.remove(leftover)


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> Callable[[Cloud], tuple[list[str], list[Leftover]]]:
    def run(cloud: Cloud) -> tuple[list[str], list[Leftover]]:
        monkeypatch.setattr(teardown, "time", SimpleNamespace(monotonic=lambda: cloud.now, sleep=cloud.sleep))
        cluster = teardown._Cluster(cast("Any", Home.of({}).stack("s")), cast("Target", cloud), Deployment("demo", "s"))
        return teardown._sweep(cluster)

    return run


Sweep = Callable[[Cloud], tuple[list[str], list[Leftover]]]


def test_nothing_is_waited_for_if_nothing_is_in_use(sweep: Sweep) -> None:
    cloud = Cloud([MACHINE, DISK, NETWORK])
    assert sweep(cloud) == ([], [MACHINE, DISK, NETWORK])
    assert not cloud.resources
    assert cloud.now < CLOSE_TO


def test_what_is_in_use_is_waited_for(sweep: Sweep) -> None:
    cloud = Cloud([DISK], free_at={DISK: 900})
    assert sweep(cloud)[0] == []
    assert cloud.now == pytest.approx(900, abs=CLOSE_TO)


def test_what_a_refused_resource_uses_is_waited_for_a_minute(sweep: Sweep) -> None:
    """A machine that AWS refused to end held its disk, and teardown waited 20 minutes for it."""
    cloud = Cloud([MACHINE, DISK, NETWORK], refused=(MACHINE,), users={DISK: MACHINE, NETWORK: DISK})
    assert [error.split(" ")[0] for error in sweep(cloud)[0]] == ["m-1", "d-1", "n-1"]
    assert cloud.now == pytest.approx(60, abs=CLOSE_TO)


def test_what_an_unlisted_resource_may_use_is_waited_for_a_minute(sweep: Sweep) -> None:
    cloud = Cloud([DISK], unseen_kinds=frozenset({"machine"}), free_at={DISK: 9999})
    assert len(sweep(cloud)[0]) == 1
    assert cloud.now == pytest.approx(60, abs=CLOSE_TO)


def test_a_refused_machine_does_not_keep_the_disks_of_others(sweep: Sweep) -> None:
    cloud = Cloud([MACHINE, OTHER_MACHINE, DISK, OTHER_DISK], refused=(MACHINE,), users={DISK: MACHINE})
    cloud.free_at[OTHER_DISK] = 90
    errors, _ = sweep(cloud)
    assert [error.split(" ")[0] for error in errors] == ["m-1", "d-1"]
    assert cloud.resources == [MACHINE, DISK]


def test_what_is_listed_late_is_removed_and_reported(sweep: Sweep) -> None:
    """AWS listed the disk of a new machine before the machine, and teardown waited 20 minutes for the disk."""
    cloud = Cloud([MACHINE, DISK, NETWORK], listed_at={MACHINE: 45}, users={DISK: MACHINE, NETWORK: DISK})
    errors, leftovers = sweep(cloud)
    assert errors == []
    assert not cloud.resources
    assert MACHINE in leftovers
    assert cloud.now == pytest.approx(60, abs=CLOSE_TO)


def test_what_stays_in_use_is_reported_after_20_minutes(sweep: Sweep) -> None:
    cloud = Cloud([DISK], free_at={DISK: 9999})
    assert sweep(cloud)[0] == ["d-1 is in use. Fix: wait."]
    assert cloud.now == pytest.approx(1200, abs=CLOSE_TO)


def test_resources_that_keep_appearing_do_not_keep_teardown(sweep: Sweep) -> None:
    class Fountain(Cloud):
        def leftovers(self, deployment: Deployment) -> Leftovers:
            self.resources.append(Leftover("machine", f"new-{self.now}"))
            return super().leftovers(deployment)

    cloud = Fountain([])
    sweep(cloud)
    assert cloud.now == pytest.approx(1200, abs=CLOSE_TO)


@pytest.mark.parametrize(("seconds", "is_left"), [(30, False), (300, True)])
def test_a_lost_connection_is_waited_for(sweep: Sweep, seconds: float, is_left: bool) -> None:
    class Cut(Cloud):
        def leftovers(self, deployment: Deployment) -> Leftovers:
            if 2 < self.now < 2 + seconds:
                raise ResourceError("aws", "cannot be listed", "connect")
            return super().leftovers(deployment)

    cloud = Cut([MACHINE, DISK], listed_at={DISK: 2}, free_at={MACHINE: 3})
    if is_left:
        with pytest.raises(ResourceError, match="cannot be listed"):
            sweep(cloud)
    else:
        assert sweep(cloud)[0] == []
    assert (DISK in cloud.resources) == is_left


@pytest.mark.parametrize(
    ("removed", "expected"),
    [
        (True, "not everything could be searched, see above; everything else is removed"),
        (False, "not everything could be searched, see above"),
    ],
)
def test_the_rest_is_called_removed_only_if_something_was(removed: bool, expected: str, tmp_path: Path) -> None:
    items = (Item("machine", "m-1", removed=True),) if removed else ()
    receipt = Receipt("s", "c", "2026-01-01T00:00:00+00:00", 1.0, items=items, unseen=("machines: no rights",))
    with pytest.raises(Stop) as stop:
        teardown._check_complete(Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s"), receipt)
    assert stop.value.what == expected
