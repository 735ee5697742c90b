"""Instances of a rehearsal without Docker: which containers would exist, and disks that need no loop device."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from cluster import names
from cluster.catalog.instances import instance
from infra.targets.aws.rehearse import instances as rehearsed
from infra.targets.aws.rehearse.delays import Clock
from infra.targets.aws.rehearse.disks import Disks
from infra.targets.aws.rehearse.instances import Instances
from infra.targets.aws.rehearse.machine import MachineArgs, Ports, Site
from infra.targets.aws.rehearse.timeline import Timeline

SITE = Site(
    "rehearsal-demo",
    "network",
    "10.96.0.1",
    Ports(1, 2, 3, 4, 5),
    "demo.internal",
    b"",
    {},
    1.0,
    1.0,
    1.0,
    1.0,
    1.0,
    "",
)
TYPE = "g6.8xlarge"


class Engine:
    """Containers that exist, in place of Docker's."""

    def __init__(self) -> None:
        self.running: set[str] = set()
        self.images: dict[str, str] = {}
        self.restarting: set[str] = set()
        self.powered_off: set[str] = set()
        self.while_starting: Callable[[], None] = lambda: None
        self.last_lines: list[str] = []

    def start(self, site: Site, args: MachineArgs) -> str:
        self.while_starting()
        self.running.add(names.container(site.cluster, args.instance))
        self.images[args.instance] = args.image
        return args.instance

    def remove(self, name: str) -> None:
        self.running.discard(name)

    def wait_for_restart(self, name: str, is_over: Callable[[], bool]) -> bool:
        while not is_over():
            if name in self.restarting:
                self.running.discard(name)
                self.restarting.discard(name)
                return True
            time.sleep(0.005)
        return False


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine()
    monkeypatch.setattr(rehearsed, "start_machine", engine.start)
    monkeypatch.setattr(rehearsed, "remove_container", engine.remove)
    monkeypatch.setattr(rehearsed, "read_last_lines", lambda _name: engine.last_lines)
    monkeypatch.setattr(rehearsed, "read_installation_s", lambda _name: 0.0)
    monkeypatch.setattr(rehearsed, "wait_for_restart", engine.wait_for_restart)
    monkeypatch.setattr(rehearsed, "is_powered_off", lambda name: name in engine.powered_off)
    monkeypatch.setattr(rehearsed, "stop_container", engine.remove)
    monkeypatch.setattr(rehearsed, "start_container", engine.running.add)
    return engine


class AttachedDisks(Disks):
    """Disks that need no loop device."""

    def attach(self, volume: str, container: str, number: int) -> None:
        self.loops[volume] = f"{container} nvme{number}n1"


def make_instances(sleep: Callable[[float], object]) -> Instances:
    return Instances(
        site=SITE,
        clock=Clock(7, 1, sleep=sleep),
        timeline=Timeline(),
        types={TYPE: instance(TYPE)},
        efa_groups=frozenset(),
        list_storage=list,
        disks=AttachedDisks("rehearsal-demo", {}),
    )


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
