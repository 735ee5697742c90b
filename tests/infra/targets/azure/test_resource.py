"""Every kind of resource against a server with Azure's API: create, read, diff, update, delete."""

from __future__ import annotations

from typing import Any

import pytest
from pulumi.dynamic import ResourceProvider
from pulumi.output import Unknown

from infra.resources.error import InUseError, ResourceError
from infra.resources.force import FORCE
from infra.targets.azure import bodies, client
from infra.targets.azure.build.machine_key import MachineKeyProvider, parse_key
from infra.targets.azure.kinds import KINDS
from infra.targets.azure.plan import plan_azure, resource_id
from infra.targets.azure.spec import require_section
from infra.targets.rented.boot import BootProvider
from infra.targets.rented.comparison import differs
from tests.infra.targets.azure.fake_arm import FakeArm
from tests.infra.targets.azure.resources import (
    LABELS,
    PROVIDER,
    Props,
    create,
    create_all,
    create_network,
    describe,
    describe_key,
)
from tests.infra.targets.azure.specs import GALLERY_IMAGE, make_spec, spec_data


def test_every_kind_is_created_read_and_deleted(arm: FakeArm) -> None:
    resources = create_all()
    del resources["scale set"]  # test_scale_set.py
    for kind, props in resources.items():
        read = PROVIDER.read(props["arm_id"], props)
        assert (read.id, read.outs) == (props["arm_id"], props), kind
        assert props["drift"] == []
        assert not PROVIDER.diff(props["arm_id"], props, props).changes
    assert resources["filesystem"]["address"] == "10.88.8.4"
    assert resources["public address"]["address"].startswith("198.51.100.")
    assert resources["network interface"]["address"].startswith("10.88.")
    arm.resources = {key: r for key, r in arm.resources.items() if "scalesets" not in key}
    for props in reversed(resources.values()):
        PROVIDER.delete(props["arm_id"], props)
        assert PROVIDER.read(props["arm_id"], props).id == ""
        # What is gone already is no error.
        PROVIDER.delete(props["arm_id"], props)
    assert arm.resources == {}


def test_a_resource_of_an_interrupted_run_is_taken_over(arm: FakeArm) -> None:
    create("resource group", "", {})
    create("public address", "muster-demo", bodies.public_address_body())
    props = create("public address", "muster-demo", bodies.public_address_body(), labels=LABELS | {"team": "a"})
    assert arm.resources[props["arm_id"].casefold()]["tags"] == LABELS | {"team": "a"}
    assert arm.calls.count(f"PUT {props['arm_id']}") == 1


def test_a_machine_that_was_stopped_meanwhile_is_taken_over(arm: FakeArm) -> None:
    props = create_all()["machine"]
    existing = arm.resources[props["arm_id"].casefold()]
    existing["properties"]["instanceView"] = {"statuses": [{"code": "PowerState/deallocated"}]}
    outs = PROVIDER.create(props).outs
    assert PROVIDER.read(props["arm_id"], outs).outs["drift"] == []


def make_machine_body(**section: Any) -> Props:
    """Return the body of the controller with other settings."""
    spec = make_spec(azure={**spec_data()["azure"], **section})
    interface = resource_id(spec, KINDS["network interface"].type, "muster-demo-controller")
    return bodies.machine_body(spec, plan_azure(spec).nodes[0], interface)


MACHINES = {
    "size": ({"controller": {"size": "Standard_D16s_v5"}}, True),
    "image": ({"image": GALLERY_IMAGE}, True),
    "kind of disk": ({"disk_sku": "Standard_LRS"}, True),
    "who may connect": ({"ssh_from": ["198.51.100.9/32"]}, False),
}


@pytest.mark.parametrize("state", ["running", "deallocated"])
@pytest.mark.parametrize(("section", "replaced"), MACHINES.values(), ids=MACHINES)
def test_a_machine_of_an_interrupted_run_is_replaced_if_the_spec_has_changed(
    arm: FakeArm, section: Props, replaced: bool, state: str
) -> None:
    props = create_all()["machine"]
    existing = arm.resources[props["arm_id"].casefold()]["properties"]
    existing["instanceView"] = {"statuses": [{"code": f"PowerState/{state}"}]}
    disk = existing["storageProfile"]["osDisk"]
    if state == "deallocated":
        # Azure reports a disk only while its machine runs.
        existing["storageProfile"] = {**existing["storageProfile"], "osDisk": {"name": disk["name"]}}
        arm.on_start = lambda machine: machine["properties"]["storageProfile"].update(osDisk=disk)
    body = make_machine_body(**section)
    outs = PROVIDER.create(props | {"body": body}).outs
    assert outs is not None
    assert (outs["machine_id"] != props["machine_id"]) is replaced
    assert not differs(body, arm.resources[props["arm_id"].casefold()])
    assert PROVIDER.read(outs["arm_id"], outs).outs["drift"] == []


def test_a_zone_that_the_spec_no_longer_has_is_a_change(arm: FakeArm) -> None:
    resources = create_all()
    machine, filesystem = resources["machine"], resources["filesystem"]
    for props in (machine, filesystem, resources["public address"]):
        arm.resources[props["arm_id"].casefold()]["zones"] = ["1"]
    assert (PROVIDER.create(machine).outs or {})["machine_id"] != machine["machine_id"]
    with pytest.raises(ResourceError, match=r"muster-demo-shared exists with 8192 GB, .* and zone 1\. Fix: "):
        PROVIDER.create(filesystem)
    # Azure chooses the zones of an address.
    calls = arm.calls.count(f"DELETE {resources['public address']['arm_id']}")
    PROVIDER.create(resources["public address"])
    assert arm.calls.count(f"DELETE {resources['public address']['arm_id']}") == calls == 0


@pytest.mark.parametrize("state", ["running", "deallocated"])
def test_a_controller_that_the_state_does_not_have_is_replaced_only_with_force(
    arm: FakeArm, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    props = create_all()["machine"] | {"node": "controller"}
    existing = arm.resources[props["arm_id"].casefold()]["properties"]
    existing["instanceView"] = {"statuses": [{"code": f"PowerState/{state}"}]}
    # The same spec takes it over.
    assert (PROVIDER.create(props).outs or {})["machine_id"] == props["machine_id"]
    other = props | {"body": make_machine_body(image=GALLERY_IMAGE)}
    what = (
        r"^azure: machine muster-demo-controller exists with another size, image, disk, zone or public address; if it "
    )
    what += (
        r"is a cluster's controller, replacing it deletes the job queue.*\. Fix: undo the change, or accept the loss"
    )
    with pytest.raises(ResourceError, match=what):
        PROVIDER.create(other)
    assert existing is arm.resources[props["arm_id"].casefold()]["properties"]
    monkeypatch.setenv(FORCE, "1")
    assert (PROVIDER.create(other).outs or {})["machine_id"] != props["machine_id"]


@pytest.mark.parametrize(
    ("state", "power", "is_refused"),
    [
        ("Failed", "running", True),
        ("Updating", "deallocated", True),
        ("Failed", "", False),
        ("Creating", "running", False),
    ],
)
def test_a_controller_whose_last_operation_has_failed_is_replaced_only_with_force(
    arm: FakeArm, monkeypatch: pytest.MonkeyPatch, state: str, power: str, is_refused: bool
) -> None:
    props = create_all()["machine"] | {"node": "controller"}
    existing = arm.resources[props["arm_id"].casefold()]["properties"]
    existing["provisioningState"] = state
    existing["instanceView"] = {"statuses": [{"code": f"PowerState/{power}"}] if power else []}
    if is_refused:
        with pytest.raises(ResourceError, match=rf"controller exists in state {state}; .*`az vm reapply` restores, or"):
            PROVIDER.create(props)
        assert existing is arm.resources[props["arm_id"].casefold()]["properties"]
        monkeypatch.setenv(FORCE, "1")
    assert (PROVIDER.create(props).outs or {})["machine_id"] != props["machine_id"]


def test_an_interface_that_should_have_no_public_address_loses_it(arm: FakeArm) -> None:
    props = create_all()["network interface"]
    PROVIDER.create(props | {"body": bodies.interface_body(make_spec(), None)})
    (configured,) = arm.resources[props["arm_id"].casefold()]["properties"]["ipConfigurations"]
    assert "publicIPAddress" not in configured["properties"]


FILESYSTEMS = {
    "capacity": {"storage": {"shared": {"kind": "volume", "size_gb": 16384}}},
    "kind": {"azure": {**spec_data()["azure"], "filesystem_sku": "AMLFS-Durable-Premium-500"}},
    "zone": {"azure": {**spec_data()["azure"], "zone": "2"}},
}


@pytest.mark.parametrize("changes", FILESYSTEMS.values(), ids=FILESYSTEMS)
def test_a_filesystem_of_an_interrupted_run_is_not_replaced(arm: FakeArm, changes: Props) -> None:
    props = create_all()["filesystem"]
    spec = make_spec(**changes)
    before = dict(arm.resources[props["arm_id"].casefold()])
    what = (
        r"^azure: filesystem muster-demo-shared exists with 8192 GB, kind AMLFS-Durable-Premium-250 and zone none\. "
        r"Fix: write these into the stack file, or remove the filesystem if its data is not needed"
    )
    with pytest.raises(ResourceError, match=what):
        PROVIDER.create(props | {"body": bodies.filesystem_body(spec, spec.storage["shared"])})
    assert arm.resources[props["arm_id"].casefold()] == before
    # The window of maintenance is Azure's matter, which somebody may have moved.
    arm.resources[props["arm_id"].casefold()]["properties"]["maintenanceWindow"]["dayOfWeek"] = "Monday"
    PROVIDER.create(props)


def test_a_resource_of_somebody_else_is_refused(arm: FakeArm) -> None:
    create("resource group", "", {}, labels=LABELS | {"muster.home": "other"})
    what = r"azure: resource group muster-demo exists, which belongs to cluster demo \(stack dev"
    with pytest.raises(ResourceError, match=what):
        create("resource group", "", {})
    next(iter(arm.resources.values()))["tags"] = None
    with pytest.raises(ResourceError, match=r"which muster did not create\. Fix: rename the cluster"):
        create("resource group", "", {})


def test_a_machine_that_could_not_be_placed_is_created_again(arm: FakeArm) -> None:
    resources = create_all()
    machine = describe("machine", "muster-demo-controller", resources["machine"]["body"])
    PROVIDER.delete(machine["arm_id"], machine)
    arm.fail("PUT", "/virtualMachines/", 200, "AllocationFailed", in_operation=True)
    with pytest.raises(ResourceError, match=r"AllocationFailed: refused.* Fix: try again later, or"):
        PROVIDER.create(machine)
    created = PROVIDER.create(machine)
    assert arm.resources[created.id.casefold()]["properties"]["provisioningState"] == "Succeeded"
    assert arm.calls.count(f"DELETE {created.id}") == 2


def test_rules_that_somebody_has_added_or_opened_are_put_right(arm: FakeArm) -> None:
    props = create_network()["security group"]
    rules = arm.resources[props["arm_id"].casefold()]["properties"]["securityRules"]
    opened = [
        {**rules[0], "properties": {**rules[0]["properties"], "sourceAddressPrefixes": ["0.0.0.0/0"]}},
        *rules[1:],
    ]
    added = [*rules, {**rules[0], "name": "mine"}]
    for changed in (opened, added):
        arm.resources[props["arm_id"].casefold()]["properties"]["securityRules"] = changed
        read = PROVIDER.read(props["arm_id"], props)
        assert read.outs["drift"] == ["body"]
        difference = PROVIDER.diff(props["arm_id"], read.outs, props)
        assert (difference.changes, difference.replaces) == (True, [])
        PROVIDER.update(props["arm_id"], read.outs, props)
        assert PROVIDER.read(props["arm_id"], props).outs["drift"] == []


def test_a_stopped_machine_is_started_again(arm: FakeArm) -> None:
    props = create_all()["machine"]
    existing = arm.resources[props["arm_id"].casefold()]
    existing["properties"]["instanceView"] = {"statuses": [{"code": "PowerState/deallocated"}]}
    read = PROVIDER.read(props["arm_id"], props)
    assert read.outs["drift"] == ["state"]
    assert PROVIDER.diff(props["arm_id"], read.outs, props).changes
    PROVIDER.update(props["arm_id"], read.outs, props)
    assert PROVIDER.read(props["arm_id"], props).outs["drift"] == []
    # Azure refuses to set user data again.
    assert arm.calls.count(f"PUT {props['arm_id']}") == 1


OTHER_SSH = bodies.security_group_body(
    require_section(make_spec()).model_copy(update={"ssh_from": ("198.51.100.9/32",)}), "10.88.0.0/20"
)
CHANGES = {
    "who may connect": ("security group", OTHER_SSH, []),
    "size": ("machine", {"properties": {"hardwareProfile": {"vmSize": "Standard_D16s_v5"}}}, ["body"]),
    "kind of filesystem": ("filesystem", {"sku": {"name": "AMLFS-Durable-Premium-500"}}, ["body"]),
}


@pytest.mark.parametrize(("kind", "body", "replaces"), CHANGES.values(), ids=CHANGES)
def test_changes_in_place_and_by_replacement(arm: FakeArm, kind: str, body: Props, replaces: list[str]) -> None:
    props = create_all()[kind]
    difference = PROVIDER.diff(props["arm_id"], props, props | {"body": body})
    assert (difference.changes, difference.replaces, difference.delete_before_replace) == (True, replaces, True)


def test_a_resource_in_use_is_not_deleted(arm: FakeArm) -> None:
    resources = create_network()
    for kind in ("NAT gateway", "public address", "security group"):
        with pytest.raises(InUseError, match=r"is in use by muster-demo.* Fix: wait until what uses it"):
            PROVIDER.delete(resources[kind]["arm_id"], resources[kind])


def test_a_group_with_something_else_in_it_is_not_deleted(arm: FakeArm) -> None:
    group = create("resource group", "", {})
    create("public address", "theirs", bodies.public_address_body())
    with pytest.raises(InUseError, match="resource group muster-demo is not empty: theirs"):
        PROVIDER.delete(group["arm_id"], group)


def test_operations_that_take_time_are_waited_for(arm: FakeArm) -> None:
    create("resource group", "", {})
    arm.polls = 5
    props = create("public address", "muster-demo", bodies.public_address_body())
    assert arm.resources[props["arm_id"].casefold()]["properties"]["provisioningState"] == "Succeeded"


def test_an_operation_that_does_not_end_is_reported(arm: FakeArm, monkeypatch: pytest.MonkeyPatch) -> None:
    create("resource group", "", {})
    arm.polls = 10**6
    cloud = client.Cloud(client._connect(str(arm.port)), "azure.region")
    path = f"{describe('public address', 'muster-demo', {})['arm_id']}"
    body = {**bodies.public_address_body(), "location": "eastus"}
    with pytest.raises(ResourceError, match=r"^azure\.region: PUT of .* has not ended in time\. Fix: run it again"):
        cloud.operate("PUT", path, "2026-03-01", 0.2, body)


def test_the_host_key_comes_from_azures_agent(arm: FakeArm) -> None:
    machine = create_all()["machine"]
    created = MachineKeyProvider().create(describe_key("controller", machine))
    assert created.outs["public"].startswith("ssh-ed25519 AAAA")
    assert " " not in created.outs["public"].removeprefix("ssh-ed25519 ")
    assert parse_key({"value": [{"message": "Enable succeeded: \n[stdout]\n\n[stderr]\nno such file\n"}]}) is None


@pytest.mark.parametrize("kind", ["filesystem", "network interface"])
def test_an_address_that_is_missing_is_an_error_and_drift(arm: FakeArm, kind: str) -> None:
    props = create_all()[kind]
    arm.gives_addresses = False
    error = rf"^azure: Azure reports success, but {kind} muster-demo-\w+ has no address\. Fix: run it again"
    with pytest.raises(ResourceError, match=error):
        PROVIDER.create(props)
    read: dict[str, Any] = PROVIDER.read(props["arm_id"], props).outs or {}
    assert (read["drift"], read["address"]) == (["address"], "")
    with pytest.raises(ResourceError, match=error):
        PROVIDER.update(props["arm_id"], read, props)
    assert PROVIDER.diff(props["arm_id"], {**read, "drift": []}, props).changes
    arm.gives_addresses = True
    assert PROVIDER.update(props["arm_id"], read, props | {"labels": {**LABELS, "team": "a"}}).outs["address"]
    assert not PROVIDER.diff(props["arm_id"], props, props).changes


def test_a_machine_that_replaces_another_is_another(arm: FakeArm) -> None:
    old = create_all()["machine"]
    key = MachineKeyProvider().create(describe_key("controller", old)).outs
    assert key is not None
    assert not MachineKeyProvider().diff("", key, key).changes
    PROVIDER.delete(old["arm_id"], old)
    new = PROVIDER.create(old).outs
    assert new is not None
    # Azure's id is a name, which both have.
    assert new["arm_id"] == old["arm_id"]
    described = describe_key("controller", new)
    assert MachineKeyProvider().diff("", key, described).replaces == ["machine"]
    assert BootProvider().diff("", {"machine": key["machine"]}, {"machine": described["machine"]}).replaces == [
        "machine"
    ]
    created = MachineKeyProvider().create(described)
    assert created.outs["public"] != key["public"]


@pytest.mark.parametrize("provider", [MachineKeyProvider(), BootProvider()])
def test_a_machine_that_is_about_to_be_replaced_takes_its_key_and_boot_along(provider: ResourceProvider) -> None:
    assert provider.diff("", {"machine": "a"}, {"machine": Unknown()}).replaces == ["machine"]
