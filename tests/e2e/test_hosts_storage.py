"""The shared filesystem of machines that somebody owns: what its check finds on three of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import docker
import pytest

from bootstrap import storage_verdict
from bootstrap.apply import apply
from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.progress import Event
from bootstrap.sessions import Sessions
from bootstrap.storage_check import check_storage
from bootstrap.transport.base import Transport
from cluster import names
from cluster.inventory import Adopted, Inventory, Node
from infra.resources import ssh_key
from tests.bootstrap.clusters import desired, node
from tests.e2e.bare_machines import BareMachines, open_machines

CLUSTER = f"storage-{os.getpid():x}"
HOSTS = {"controller": "head", "cpu-1": "rack1-1", "cpu-2": "rack1-2"}
CHECKED = "ls -A /shared; ls -d /etc/muster /var/lib/muster/record 2>/dev/null || true"


@pytest.fixture(scope="module")
def machines() -> Iterator[BareMachines]:
    labels = {"muster.cluster": CLUSTER}
    shared = docker.from_env().volumes.create(names.volume(CLUSTER, "shared"), labels=labels)
    mounts = {host: ({"volume": str(shared.name), "target": "/shared"},) for host in HOSTS.values()}
    try:
        with open_machines(CLUSTER, list(HOSTS.values()), ssh_key.generate("me").public, mounts) as opened:
            yield opened
    finally:
        shared.remove(force=True)


@pytest.fixture
def cluster() -> Desired:
    """Return the cluster that these machines are about to become."""
    roles = {"controller": "controller"}
    nodes = tuple(
        node(name, roles.get(name, "compute"), number, adopted=Adopted(hostname=host, user="ops"))
        for number, (name, host) in enumerate(HOSTS.items(), 1)
    )
    return replace(desired(), inventory=Inventory(cluster=CLUSTER, target="hosts", nodes=nodes))


def check(machines: BareMachines, cluster: Desired) -> list[Event]:
    """Run the check on all machines; return what it reports."""
    events: list[Event] = []
    with Sessions(lambda member: connect(machines, member)) as sessions:
        check_storage(cluster, sessions, events.append)
    return events


def connect(machines: BareMachines, member: Node) -> Transport:
    return machines.roots[HOSTS[member.name]]


@contextmanager
def instead(machines: BareMachines, host: str, options: str) -> Iterator[None]:
    """Mount a small filesystem of the machine's own over the shared one."""
    machines.run(host, f"mount -t tmpfs -o {options} tmpfs /shared")
    try:
        yield
    finally:
        machines.run(host, "umount /shared")


def test_a_filesystem_that_all_machines_share(
    machines: BareMachines, cluster: Desired, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The disk of this machine may be busy; tests/bootstrap/test_storage_check.py judges speeds.
    monkeypatch.setattr(storage_verdict, "MIN_TOTAL_MBPS", 0.0)
    start, end = check(machines, cluster)
    assert (start.step, start.state, end.state) == ("storage", "start", "ok")
    assert "MB/s from all nodes together" in end.detail
    for host in HOSTS.values():
        assert machines.run(host, CHECKED) == ""


def test_a_machine_with_another_filesystem_is_named(machines: BareMachines, cluster: Desired) -> None:
    with instead(machines, "rack1-2", "size=64m"), pytest.raises(BootstrapError) as caught:
        check(machines, cluster)
    text = str(caught.value)
    assert "does not show within 15 s what" in text
    assert "tmpfs (tmpfs)" in text
    assert "Fix: mount the same filesystem at /shared on all nodes" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("size=1m", "cannot write 16 MB and fsync: dd: error writing .*: No space left on device"),
        ("ro", "cannot create a folder: mkdir: cannot create directory"),
    ],
)
def test_a_full_or_read_only_filesystem_is_named(
    machines: BareMachines, cluster: Desired, options: str, words: str
) -> None:
    with instead(machines, "rack1-1", options), pytest.raises(BootstrapError, match=words) as caught:
        check(machines, cluster)
    assert (caught.value.node, caught.value.step) == ("cpu-1", "storage")


def test_up_without_the_preflight_refuses_a_machine_without_the_filesystem(
    machines: BareMachines, cluster: Desired
) -> None:
    machines.run("rack1-2", "umount /shared")
    with pytest.raises(BootstrapError, match="nothing is mounted at /shared") as caught:
        apply(cluster, lambda member: connect(machines, member), lambda _: None)
    assert (caught.value.node, caught.value.step) == ("cpu-2", "storage")
    for host in HOSTS.values():
        assert machines.run(host, CHECKED) == ""
