"""Leftovers by label: what belongs to the cluster, in the order of removal, and what cannot be searched."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpc import StatusCode

from infra.resources.error import InUseError, ResourceError
from infra.targets.nebius.leftovers import find_leftovers, measure_leftover, remove_leftover
from infra.targets.rented.owner import owner_labels
from infra.targets.target import Deployment, Leftovers
from tests.infra.targets.clock import Clock
from tests.infra.targets.nebius import resources
from tests.infra.targets.nebius.fake_cloud import FakeCloud
from tests.infra.targets.nebius.resources import PROJECT, create, create_all

DEPLOYMENT = Deployment("demo", "dev", account=PROJECT)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    monkeypatch.setattr(resources, "LABELS", owner_labels("demo", "dev", tmp_path, {}))


def remove_all(search: Leftovers, clock: Clock) -> None:
    for leftover in search.resources:
        remove_leftover(leftover, clock.now + 60)


def test_everything_is_listed_in_the_order_of_removal(cloud: FakeCloud, clock: Clock) -> None:
    create_all()
    create("network", "other", {}, labels={"muster.cluster": "demo", "muster.home": "of somebody else"})
    create("network", "third", {}, labels={"muster.cluster": "other"})
    search = find_leftovers(DEPLOYMENT)
    assert [leftover.kind for leftover in search.resources] == [
        *("instance", "disk", "GPU cluster", "filesystem", "security rule", "security rule", "security rule"),
        *("security group", "subnet", "network"),
    ]
    instance = search.resources[0]
    assert (instance.is_node, instance.usd_per_hour, instance.stack) == (True, 23.6, "dev")
    assert instance.created
    assert measure_leftover(search.resources[3]) == 1024 * 2**30
    remove_all(search, clock)
    assert find_leftovers(DEPLOYMENT).resources == []
    assert [network["metadata"]["name"] for network in cloud.of_kind("Network")] == ["other", "third"]


def test_a_boot_disk_that_outlives_its_instance_is_removed(cloud: FakeCloud, clock: Clock) -> None:
    id_, _props = create_all()["instance"]
    del cloud.resources[id_], cloud.kinds[id_]
    (disk,) = (leftover for leftover in find_leftovers(DEPLOYMENT).resources if leftover.kind == "disk")
    assert disk.name.startswith("muster-demo-gpu-2-boot ")
    remove_leftover(disk, clock.now + 60)
    assert cloud.of_kind("Disk") == []


def test_a_preemptible_machine_has_its_own_price(cloud: FakeCloud) -> None:
    id_, _props = create_all()["instance"]
    cloud.resources[id_]["spec"]["preemptible"] = {"onPreemption": "STOP"}
    assert find_leftovers(DEPLOYMENT).resources[0].usd_per_hour == 10.0


def test_only_rules_of_the_clusters_own_groups_are_listed(cloud: FakeCloud) -> None:
    create_all()
    before = len(find_leftovers(DEPLOYMENT).resources)
    calls_before = cloud.calls.count("List SecurityRule")
    network = cloud.of_kind("Network")[0]["metadata"]["id"]
    create("security group", "other", {"networkId": network}, labels={"muster.cluster": "other"})
    assert len(find_leftovers(DEPLOYMENT).resources) == before
    assert cloud.calls.count("List SecurityRule") == 2 * calls_before


def test_a_group_that_goes_during_the_search_hides_nothing(cloud: FakeCloud) -> None:
    create_all()
    cloud.fail("List", "SecurityRule", StatusCode.NOT_FOUND, "not found")
    search = find_leftovers(DEPLOYMENT)
    assert (search.unseen, search.unseen_kinds) == ((), frozenset())
    assert "security rule" not in {leftover.kind for leftover in search.resources}


def test_what_is_in_use_is_retried_until_the_deadline(cloud: FakeCloud, clock: Clock) -> None:
    create_all()
    network = find_leftovers(DEPLOYMENT).resources[-1]
    with pytest.raises(InUseError, match="is used by"):
        remove_leftover(network, clock.now + 9)
    assert cloud.calls.count("Delete Network") == 5
    assert clock.slept == [2.0] * 4


def test_a_resource_that_is_still_being_created_is_removed_as_soon_as_it_can_be(cloud: FakeCloud, clock: Clock) -> None:
    def begin(name: str, polls: int) -> None:
        """Send what a run sends that is killed before the operation ends."""
        cloud.polls = polls
        metadata = {"parentId": PROJECT, "name": name, "labels": resources.LABELS}
        cloud.handle("nebius.compute.v1.GpuClusterService", "Create", {"metadata": metadata})

    begin("demo-gpu", 4)
    remove_all(find_leftovers(DEPLOYMENT), clock)
    assert cloud.resources == {}
    assert cloud.calls.count("Delete GpuCluster") == 4
    begin("demo-slow", 10_000)
    (leftover,) = find_leftovers(DEPLOYMENT).resources
    with pytest.raises(InUseError, match=r"another operation on .* is running\. Fix: wait until the other operation"):
        remove_leftover(leftover, clock.now + 9)


def test_kinds_that_cannot_be_listed_are_named(cloud: FakeCloud) -> None:
    create_all()
    cloud.fail("List", "Filesystem", StatusCode.PERMISSION_DENIED, "not allowed", times=99)
    search = find_leftovers(DEPLOYMENT)
    assert search.unseen_kinds == {"filesystem"}
    assert search.unseen[0].startswith("filesystem: not allowed. Fix: ask for the role `editor`")
    assert "filesystem" not in {leftover.kind for leftover in search.resources}


def test_without_a_login_nothing_is_claimed_to_be_gone(cloud: FakeCloud) -> None:
    cloud.fail("List", "Instance", StatusCode.UNAUTHENTICATED, "token expired", times=99)
    with pytest.raises(ResourceError, match=r"^nebius.project: token expired\. Fix: log in again"):
        find_leftovers(DEPLOYMENT)
