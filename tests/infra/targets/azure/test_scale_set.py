"""The scale set of a group: its instances become nodes, grow, shrink, fail, stop and are replaced."""

from __future__ import annotations

import pytest

from infra.resources.error import ResourceError
from infra.targets.azure.instances import Instance, assign_nodes
from infra.targets.rented.comparison import differs
from tests.infra.targets.azure.fake_arm import FakeArm
from tests.infra.targets.azure.resources import (
    SCALE_SETS,
    Props,
    create_network,
    create_scale_set,
    describe_scale_set,
)
from tests.infra.targets.azure.specs import GALLERY_IMAGE, make_spec, spec_data

NODES = ["gpu-1", "gpu-2", "gpu-3"]


@pytest.fixture(autouse=True)
def network(arm: FakeArm) -> None:
    create_network()


def update(olds: Props, nodes: list[str]) -> Props:
    """Change the nodes of a scale set and return its outputs."""
    news = describe_scale_set(make_spec(), nodes)
    difference = SCALE_SETS.diff(olds["arm_id"], olds, news)
    assert (difference.changes, difference.replaces) == (True, [])
    outs = SCALE_SETS.update(olds["arm_id"], olds, news).outs
    assert outs is not None
    assert not SCALE_SETS.diff(outs["arm_id"], outs, outs).changes
    return outs


def numbers(props: Props) -> dict[str, str]:
    return {node: machine["number"] for node, machine in props["machines"].items()}


def machine_ids(props: Props) -> set[str]:
    return {machine["machine_id"] for machine in props["machines"].values()}


def test_instances_become_nodes_with_their_addresses(arm: FakeArm) -> None:
    props = create_scale_set(NODES)
    assert list(props["machines"]) == NODES
    assert len({machine["address"] for machine in props["machines"].values()}) == 3
    assert all(machine["public_address"].startswith("198.51.100.") for machine in props["machines"].values())
    assert sorted(numbers(props).values(), key=int) == list(numbers(props).values())
    assert SCALE_SETS.read(props["arm_id"], props).outs["drift"] == []
    SCALE_SETS.delete(props["arm_id"], props)
    assert SCALE_SETS.read(props["arm_id"], props).id == ""
    assert arm.instances == {}


def test_nodes_keep_their_instances_when_the_group_grows_and_shrinks(arm: FakeArm) -> None:
    small = create_scale_set(NODES[:2])
    grown = update(small, NODES)
    assert {node: numbers(grown)[node] for node in NODES[:2]} == numbers(small)
    shrunk = update(grown, NODES[:1])
    assert numbers(shrunk) == {"gpu-1": numbers(small)["gpu-1"]}
    (instances,) = arm.instances.values()
    assert list(instances) == [numbers(small)["gpu-1"]]
    assert arm.of_type("Microsoft.Compute/virtualMachineScaleSets")[0]["sku"]["capacity"] == 1


def test_an_instance_that_is_gone_is_replaced_and_the_others_stay(arm: FakeArm) -> None:
    props = create_scale_set(NODES)
    (instances,) = arm.instances.values()
    del instances[numbers(props)["gpu-2"]]
    arm.of_type("Microsoft.Compute/virtualMachineScaleSets")[0]["sku"]["capacity"] = 2
    read = SCALE_SETS.read(props["arm_id"], props).outs
    assert read["drift"] == ["gpu-2"]
    repaired = update(read, NODES)
    assert {node for node in NODES if numbers(repaired)[node] != numbers(props)[node]} == {"gpu-2"}


def test_stopped_instances_start_and_those_without_a_node_are_deleted(arm: FakeArm) -> None:
    props = create_scale_set(NODES[:2])
    (instances,) = arm.instances.values()
    stopped = instances[numbers(props)["gpu-1"]]
    stopped["properties"]["instanceView"] = {"statuses": [{"code": "PowerState/stopped"}]}
    extra = f"{props['arm_id']}/virtualMachines/99"
    instances["99"] = {"id": extra, "instanceId": "99", "properties": {"provisioningState": "Succeeded"}}
    read = SCALE_SETS.read(props["arm_id"], props).outs
    assert read["drift"] == ["gpu-1", "instance 99"]
    repaired = update(read, NODES[:2])
    assert numbers(repaired) == numbers(props)
    assert list(instances) == list(numbers(props).values())
    assert stopped["properties"]["instanceView"]["statuses"][0]["code"] == "PowerState/running"


def test_a_failed_creation_is_continued(arm: FakeArm) -> None:
    arm.fail("PUT", "ScaleSets", 200, "AllocationFailed", "no room", in_operation=True)
    with pytest.raises(ResourceError, match=r"^azure: AllocationFailed: no room.* Fix: try again later"):
        create_scale_set(NODES)
    (set_id,) = arm.instances
    # Some instances may exist by then, of which some have failed.
    failed = {"id": f"{set_id}/virtualMachines/1", "instanceId": "1", "properties": {"provisioningState": "Failed"}}
    arm.instances[set_id]["1"] = failed
    props = create_scale_set(NODES)
    assert "1" not in numbers(props).values()
    assert list(arm.instances[set_id]) == list(numbers(props).values())


SETS = {
    "size": {"groups": {"gpu": {"size": "Standard_ND96isr_H200_v5"}}},
    "image": {"image": GALLERY_IMAGE},
    "public addresses": {"public_addresses": False},
}


@pytest.mark.parametrize("section", SETS.values(), ids=SETS)
def test_a_scale_set_of_an_interrupted_run_is_replaced_if_the_spec_has_changed(arm: FakeArm, section: Props) -> None:
    props = create_scale_set(NODES)
    news = describe_scale_set(make_spec(azure=spec_data()["azure"] | section), NODES[:2])
    replaced = SCALE_SETS.create(news).outs
    assert replaced is not None
    assert machine_ids(replaced).isdisjoint(machine_ids(props))
    assert not differs(news["body"], arm.resources[props["arm_id"].casefold()])
    # The same spec again takes over what is there.
    assert SCALE_SETS.create(news).outs == replaced


def test_a_scale_set_of_an_interrupted_run_in_a_zone_that_the_spec_no_longer_has_is_replaced(arm: FakeArm) -> None:
    zoned = describe_scale_set(make_spec(azure=spec_data()["azure"] | {"zone": "1"}), NODES)
    props = SCALE_SETS.create(zoned).outs
    assert props is not None
    replaced = SCALE_SETS.create(describe_scale_set(make_spec(), NODES)).outs
    assert replaced is not None
    assert machine_ids(replaced).isdisjoint(machine_ids(props))
    assert "zones" not in arm.resources[props["arm_id"].casefold()]


def test_instances_of_another_model_are_replaced(arm: FakeArm) -> None:
    props = create_scale_set(NODES)
    (instances,) = arm.instances.values()
    instances[numbers(props)["gpu-2"]]["properties"]["latestModelApplied"] = False
    new = SCALE_SETS.create(props).outs
    assert new is not None
    old = props["machines"]["gpu-2"]["machine_id"]
    assert machine_ids(props) - machine_ids(new) == {old}
    assert len(machine_ids(new)) == 3


def test_another_size_replaces_all_machines(arm: FakeArm) -> None:
    props = create_scale_set(NODES)
    section = spec_data()["azure"] | {"groups": {"gpu": {"size": "Standard_ND96isr_H200_v5"}}}
    news = describe_scale_set(make_spec(azure=section), NODES)
    difference = SCALE_SETS.diff(props["arm_id"], props, news)
    assert (difference.changes, difference.replaces, difference.delete_before_replace) == (True, ["body"], True)


def test_machines_of_a_new_scale_set_are_others_with_the_numbers_of_the_old_ones(arm: FakeArm) -> None:
    old = create_scale_set(NODES)
    SCALE_SETS.delete(old["arm_id"], old)
    new = create_scale_set(NODES)
    assert numbers(new) == numbers(old)
    assert {machine["arm_id"] for machine in new["machines"].values()} == {
        machine["arm_id"] for machine in old["machines"].values()
    }
    assert machine_ids(new).isdisjoint(machine_ids(old))
    # Somebody else has created it again.
    assert SCALE_SETS.read(old["arm_id"], old).outs["drift"] == NODES
    assert machine_ids(update(old | {"drift": NODES}, NODES)) == machine_ids(new)


@pytest.mark.parametrize(
    ("path", "missing"), [("publicipaddresses", "public address"), ("networkInterfaces", "address")]
)
def test_an_address_that_is_missing_is_an_error_and_drift(arm: FakeArm, path: str, missing: str) -> None:
    arm.answers[f"/{path}"] = {"value": []}
    with pytest.raises(
        ResourceError, match=rf"^azure: Azure reports success, but gpu-1 has no {missing}\. Fix: run it"
    ):
        create_scale_set(NODES)
    del arm.answers[f"/{path}"]
    props = create_scale_set(NODES)
    gpu_2 = {**props["machines"]["gpu-2"], missing.replace(" ", "_"): ""}
    olds = props | {"machines": {**props["machines"], "gpu-2": gpu_2}}
    assert SCALE_SETS.read(olds["arm_id"], olds).outs["drift"] == ["gpu-2"]
    assert update(olds, NODES)["machines"] == props["machines"]


def test_machines_without_public_addresses_need_none(arm: FakeArm) -> None:
    arm.answers["/publicipaddresses"] = {"value": []}
    spec = make_spec(azure={**spec_data()["azure"], "public_addresses": False})
    props = SCALE_SETS.create(describe_scale_set(spec, NODES)).outs
    assert props is not None
    assert SCALE_SETS.read(props["arm_id"], props).outs["drift"] == []


def instance(number: str) -> Instance:
    return Instance(number, f"/machines/{number}", f"id-{number}", failed=False, running=True)


CASES = {
    "created together": (["a", "b"], ["0", "1"], {}, {"a": "0", "b": "1"}),
    "known": (["a", "b"], ["0", "1"], {"a": "1", "b": "0"}, {"a": "1", "b": "0"}),
    "one replaced": (["a", "b", "c"], ["0", "2", "3"], {"a": "0", "b": "1", "c": "2"}, {"a": "0", "c": "2", "b": "3"}),
    "one missing": (["a", "b"], ["1"], {"a": "0", "b": "1"}, {"b": "1"}),
    "a node that is gone": (["a"], ["0", "1"], {"a": "0", "b": "1"}, {"a": "0"}),
}


@pytest.mark.parametrize(("nodes", "existing", "previous", "expected"), CASES.values(), ids=CASES)
def test_which_instance_is_which_node(
    nodes: list[str], existing: list[str], previous: dict[str, str], expected: dict[str, str]
) -> None:
    assert assign_nodes(nodes, [instance(number) for number in existing], previous) == expected
