"""Leftovers by tag: what belongs to the cluster, in the order of removal, and what stays for a filesystem."""

from __future__ import annotations

from pathlib import Path

import pytest
from azure.core.exceptions import ClientAuthenticationError

from infra.engine.stop import Stop
from infra.resources.error import InUseError, ResourceError
from infra.targets.azure import client
from infra.targets.azure.leftovers import find_leftovers, measure_leftover, remove_leftover
from infra.targets.azure.spec import LOGIN_FIX
from infra.targets.azure.target import AzureTarget
from infra.targets.rented.owner import owner_labels
from infra.targets.target import Deployment, Leftovers
from tests.infra.targets.azure import resources
from tests.infra.targets.azure.fake_arm import FakeArm
from tests.infra.targets.azure.resources import create_all, describe
from tests.infra.targets.azure.specs import SUBSCRIPTION
from tests.infra.targets.clock import Clock

DEPLOYMENT = Deployment("demo", "dev", account=SUBSCRIPTION)
DISKS = "Microsoft.Compute/disks"


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    monkeypatch.setattr(resources, "LABELS", owner_labels("demo", "dev", tmp_path, {}))


def remove_all(search: Leftovers, clock: Clock) -> None:
    for leftover in search.resources:
        if not leftover.keep_reason:
            remove_leftover(leftover, clock.now + 60)


def add(arm: FakeArm, kind: str, name: str, **changes: object) -> str:
    """Add a resource that no provider has created, and return its id."""
    props = describe(kind, name, {})
    type_ = props["arm_id"].rpartition("/providers/")[2].rpartition("/")[0]
    arm.resources[props["arm_id"].casefold()] = {
        "id": props["arm_id"],
        "name": name,
        "type": type_,
        "properties": {},
        **changes,
    }
    return str(props["arm_id"])


def test_everything_is_listed_in_the_order_of_removal_and_removed(arm: FakeArm, clock: Clock) -> None:
    create_all()
    # Azure creates boot disks without tags.
    add(arm, "disk", "muster-demo-controller-boot")
    other = arm.resources[next(key for key in arm.resources if key.endswith("/muster-demo-nat"))]
    foreign = {**other, "id": other["id"].replace("resourceGroups/muster-demo", "resourceGroups/theirs")}
    arm.resources[foreign["id"].casefold()] = {**foreign, "tags": {"muster.cluster": "demo", "muster.home": "theirs"}}
    search = find_leftovers(DEPLOYMENT)
    assert [leftover.kind for leftover in search.resources] == [
        *("scale set", "machine", "network interface", "disk", "filesystem", "network", "NAT gateway"),
        *("public address", "public address", "security group", "resource group"),
    ]
    machines = {leftover.kind: leftover for leftover in search.resources if leftover.is_node}
    assert {kind: machine.usd_per_hour for kind, machine in machines.items()} == {"scale set": 196.64, "machine": 0.384}
    assert (machines["machine"].stack, machines["machine"].region) == ("dev", "eastus")
    assert machines["machine"].created
    assert measure_leftover(search.resources[4]) == 8 * 2**40
    remove_all(search, clock)
    assert find_leftovers(DEPLOYMENT).resources == []
    assert [r["id"] for r in arm.resources.values()] == [foreign["id"]]


def test_what_a_filesystem_needs_stays_with_it(arm: FakeArm, clock: Clock) -> None:
    created = create_all()
    filesystem = arm.resources[created["filesystem"]["arm_id"].casefold()]
    filesystem["tags"] = {**filesystem["tags"], "muster.keep": "true"}
    search = find_leftovers(DEPLOYMENT)
    needed = "filesystem muster-demo-shared needs it"
    assert {leftover.name.rpartition("/")[2]: leftover.keep_reason for leftover in search.resources[3:]} == {
        "muster-demo-shared": "keep: true",
        "muster-demo": needed,
        "muster-demo-nat": needed,
        "muster-demo-controller": "",
    }
    remove_all(search, clock)
    kinds = [leftover.kind for leftover in find_leftovers(DEPLOYMENT).resources]
    assert kinds == ["filesystem", "network", "NAT gateway", "public address", "security group", "resource group"]


def test_a_group_with_something_of_others_stays(arm: FakeArm, clock: Clock) -> None:
    create_all()
    theirs = add(arm, "disk", "their-data")
    search = find_leftovers(DEPLOYMENT)
    assert theirs.rpartition("/")[2] not in {leftover.name.rpartition("/")[2] for leftover in search.resources}
    *others, group = search.resources
    remove_all(Leftovers(others), clock)
    with pytest.raises(InUseError, match="resource group muster-demo is not empty: their-data"):
        remove_leftover(group, clock.now + 3)
    assert len(arm.resources) == 2


def test_what_is_in_use_is_retried_until_the_deadline(arm: FakeArm, clock: Clock) -> None:
    create_all()
    gateway = next(leftover for leftover in find_leftovers(DEPLOYMENT).resources if leftover.kind == "NAT gateway")
    with pytest.raises(InUseError, match="is in use by muster-demo"):
        remove_leftover(gateway, clock.now + 9)
    assert gateway.name == f"{SUBSCRIPTION}/muster-demo/muster-demo"
    assert sum(call.startswith("DELETE ") and call.endswith("/natGateways/muster-demo") for call in arm.calls) == 5
    assert clock.slept == [2.0] * 4


def test_a_subscription_that_cannot_be_listed(arm: FakeArm) -> None:
    create_all()
    arm.fail("GET", "/resourcegroups", 403, "AuthorizationFailed", "no authorization", times=99)
    search = find_leftovers(DEPLOYMENT)
    assert search.resources == []
    assert "scale set" in search.unseen_kinds
    assert search.unseen[0].startswith("resources of the subscription: AuthorizationFailed: no authorization. Fix: ask")


def test_without_a_login_nothing_is_claimed_to_be_gone(arm: FakeArm) -> None:
    arm.fail("GET", "/resourcegroups", 401, "ExpiredAuthenticationToken", "the token has expired", times=99)
    with pytest.raises(ResourceError, match=r"^azure\.subscription: ExpiredAuthenticationToken: .*Fix: log in again"):
        find_leftovers(DEPLOYMENT)


def test_without_credentials_nothing_is_searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (client.LOOPBACK, "AZURE_CLIENT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_CONFIG_DIR", str(tmp_path))
    with pytest.raises(Stop, match=r"^there are no credentials for Azure") as stop:
        AzureTarget().leftovers(DEPLOYMENT)
    assert stop.value.fix == LOGIN_FIX


def test_a_login_that_fails_is_no_part_that_could_not_be_searched(
    monkeypatch: pytest.MonkeyPatch, arm: FakeArm
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ClientAuthenticationError("no account")

    monkeypatch.setattr(client.Cloud, "list", fail)
    with pytest.raises(ResourceError, match=r"^azure\.subscription: the login to Azure failed: no account"):
        find_leftovers(DEPLOYMENT)
