"""Every kind of resource against a gRPC server with Nebius's services: create, read, diff, update, delete, errors."""

from __future__ import annotations

from typing import Any

import pytest
from grpc import StatusCode

from cluster.spec import ClusterSpec
from infra.resources.error import InUseError, ResourceError
from infra.resources.force import FORCE
from infra.targets.nebius.client import normalize_spec, open_cloud
from infra.targets.nebius.drift import find_outdated
from infra.targets.nebius.kinds import KINDS, Kind
from infra.targets.nebius.plan import gpu_cluster_spec, instance_spec, plan_nebius, rule_specs
from infra.targets.nebius.spec import require_section
from tests.infra.targets.clock import Clock
from tests.infra.targets.nebius.fake_cloud import FakeCloud
from tests.infra.targets.nebius.immutable_fields import list_fields
from tests.infra.targets.nebius.resources import LABELS, PROVIDER, Props, create, create_all, describe
from tests.infra.targets.nebius.specs import make_spec, spec_data


def test_every_kind_is_created_read_and_deleted(cloud: FakeCloud) -> None:
    resources = create_all()
    assert set(cloud.kinds.values()) == {
        *("Network", "Subnet", "SecurityGroup", "SecurityRule", "Filesystem", "GpuCluster", "Instance", "Disk")
    }
    for kind, (id_, props) in resources.items():
        read = PROVIDER.read(id_, props)
        assert (read.id, read.outs) == (id_, props), kind
        assert props["drift"] == []
        assert not PROVIDER.diff(
            id_, props, describe(kind, props["name"], props["spec"], parent=props["parent"])
        ).changes
    instance = resources["instance"][1]
    assert instance["address"].startswith("10.88.0.")
    assert instance["public_address"].startswith("198.51.100.")
    assert instance["path"] == ["root-1", "pod-1", "leaf-1"]
    for kind in reversed(resources):
        PROVIDER.delete(resources[kind][0], resources[kind][1])
        assert PROVIDER.read(resources[kind][0], resources[kind][1]).id == "", kind
        # What is gone already is no error.
        PROVIDER.delete(resources[kind][0], resources[kind][1])
    assert cloud.resources == {}


def test_a_resource_of_an_interrupted_run_is_taken_over(cloud: FakeCloud) -> None:
    id_, _props = create("network", "demo", {})
    cloud.resources[id_]["metadata"]["labels"]["owner"] = "somebody"
    again, props = create("network", "demo", {}, labels=LABELS | {"team": "a"})
    assert again == id_
    assert cloud.resources[id_]["metadata"]["labels"] == LABELS | {"team": "a"}
    assert props["drift"] == []


def test_a_resource_of_somebody_else_is_refused(cloud: FakeCloud) -> None:
    id_, _props = create("network", "demo", {}, labels=LABELS | {"muster.home": "other"})
    with pytest.raises(ResourceError, match=r"nebius: network demo exists, which belongs to cluster demo \(stack dev"):
        create("network", "demo", {})
    cloud.resources[id_]["metadata"]["labels"] = {}
    with pytest.raises(ResourceError, match=r"which muster did not create\. Fix: rename the cluster"):
        create("network", "demo", {})


def find_rule(cloud: FakeCloud, name: str) -> tuple[str, Props]:
    """Return the id of a security rule, and the rule."""
    rules = {rule["metadata"]["name"]: rule for rule in cloud.of_kind("SecurityRule")}
    return rules[name]["metadata"]["id"], rules[name]


def replace_rule(id_: str, olds: Props, news: Props) -> str:
    """Do what Pulumi does when the provider asks for a replacement; return the id of the new rule."""
    difference = PROVIDER.diff(id_, olds, news)
    assert (difference.replaces, difference.delete_before_replace) == (["spec"], True)
    PROVIDER.delete(id_, olds)
    return PROVIDER.create(news).id


def test_rules_that_somebody_has_opened_are_closed_again(cloud: FakeCloud) -> None:
    group = create_all()["security group"][0]
    inputs = describe("security rule", "ssh", rule_specs(group, ["203.0.113.7/32"])["ssh"], parent=group)
    id_, rule = find_rule(cloud, "ssh")
    rule["spec"]["ingress"]["sourceCidrs"] = ["0.0.0.0/0"]
    read = PROVIDER.read(id_, inputs)
    assert read.outs["drift"] == ["ingress"]
    # The API changes no rule, so another one takes its place.
    with pytest.raises(ResourceError, match=r"^nebius: spec\.ingress: field is immutable"):
        PROVIDER.update(id_, read.outs, inputs)
    assert replace_rule(id_, read.outs, inputs) != id_
    assert find_rule(cloud, "ssh")[1]["spec"]["ingress"]["sourceCidrs"] == ["203.0.113.7/32"]


def test_an_address_that_may_no_longer_connect_is_shut_out(cloud: FakeCloud) -> None:
    group = create_all()["security group"][0]
    olds, news = (
        describe("security rule", "ssh", rule_specs(group, ssh_from)["ssh"], parent=group)
        for ssh_from in (["203.0.113.7/32"], ["203.0.113.8/32"])
    )
    id_ = find_rule(cloud, "ssh")[0]
    replace_rule(id_, olds, news)
    assert find_rule(cloud, "ssh")[1]["spec"]["ingress"]["sourceCidrs"] == ["203.0.113.8/32"]


def test_a_rule_of_an_interrupted_run_with_other_content_is_created_again(cloud: FakeCloud) -> None:
    group = create_all()["security group"][0]
    id_ = find_rule(cloud, "ssh")[0]
    again, _props = create("security rule", "ssh", rule_specs(group, ["203.0.113.8/32"])["ssh"], parent=group)
    assert again != id_
    assert find_rule(cloud, "ssh")[1]["spec"]["ingress"]["sourceCidrs"] == ["203.0.113.8/32"]
    assert len(cloud.of_kind("SecurityRule")) == 3


def describe_instance(resources: dict[str, tuple[str, Props]], spec: ClusterSpec) -> Props:
    """Return the spec of the last node's instance on the resources that there are."""
    parts = {
        "subnet": resources["subnet"][0],
        "security_group": resources["security group"][0],
        "gpu_cluster": resources["GPU cluster"][0] if require_section(spec).groups["gpu"].fabric else None,
    }
    filesystems = dict.fromkeys(spec.storage, resources["filesystem"][0])
    return instance_spec(spec, plan_nebius(spec).nodes[-1], parts, filesystems)


def group_of_gpus(**changes: Any) -> Props:
    """Return the section of the specs with another node group."""
    return {
        "nebius": {**spec_data()["nebius"], "groups": {"gpu": {**spec_data()["nebius"]["groups"]["gpu"], **changes}}}
    }


TCP = {"gpu": {**spec_data()["groups"]["gpu"], "fabric": "tcp"}}
INSTANCES: dict[str, tuple[Props, list[str]]] = {
    "preset": (group_of_gpus(preset="1gpu-16vcpu-200gb"), ["resources"]),
    "preemptible": (group_of_gpus(preemptible=True), ["preemptible", "recoveryPolicy"]),
    "no fabric": (group_of_gpus(fabric=None) | {"groups": TCP}, ["gpuCluster"]),
    "no filesystem": ({"storage": {}}, ["filesystems"]),
    "image": ({"nebius": {**spec_data()["nebius"], "image": "computeimage-e00other"}}, ["bootDisk"]),
    "no public address": ({"nebius": {**spec_data()["nebius"], "public_addresses": False}}, ["networkInterfaces"]),
    "who may connect": ({"nebius": {**spec_data()["nebius"], "ssh_from": ["198.51.100.9/32"]}}, []),
}


@pytest.mark.parametrize("state", ["RUNNING", "STOPPED"])
@pytest.mark.parametrize("undone", [False, True], ids=["changed", "undone"])
@pytest.mark.parametrize(("changes", "fields"), INSTANCES.values(), ids=INSTANCES)
def test_an_instance_of_an_interrupted_run_is_replaced_if_the_spec_has_changed(
    cloud: FakeCloud, changes: Props, fields: list[str], state: str, *, undone: bool
) -> None:
    resources = create_all()
    id_, props = resources["instance"]
    before, after = props["spec"], describe_instance(resources, make_spec(**changes))
    if undone:
        before, after = after, before
        PROVIDER.delete(id_, props)
        id_, _props = create("instance", props["name"], before)
    cloud.resources[id_]["status"]["state"] = state
    kind = KINDS["instance"]
    assert find_outdated(kind, normalize_spec(kind, after), normalize_spec(kind, before)) == fields
    again, outputs = create("instance", props["name"], after)
    assert (again != id_) is bool(fields)
    assert normalize_spec(kind, after).items() <= without_disk_labels(cloud.resources[again]["spec"]).items()
    assert (outputs["drift"], cloud.resources[again]["status"]["state"]) == ([], "RUNNING")
    # What is replaced is not started first.
    assert ("Start Instance" in cloud.calls) is (state == "STOPPED" and not fields)


def without_disk_labels(spec: Props) -> Props:
    """Return the spec of an instance without the labels of its boot disk."""
    disk = {key: value for key, value in spec["bootDisk"]["managedDisk"].items() if key != "labels"}
    return {**spec, "bootDisk": {**spec["bootDisk"], "managedDisk": disk}}


def test_a_controller_that_the_state_does_not_have_is_replaced_only_with_force(
    cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_, props = create_all()["instance"]
    # The same spec takes it over.
    assert create("instance", props["name"], props["spec"], node="controller")[0] == id_
    other = props["spec"] | {"resources": {"platform": "cpu-d3", "preset": "16vcpu-64gb"}}
    what = (
        r"^nebius: machine demo-gpu-2 exists with other settings \(resources\); if it is a cluster's controller, "
        r"replacing it deletes the job queue.*\. Fix: undo the change, or accept the loss with `make up FORCE=1`"
    )
    with pytest.raises(ResourceError, match=what):
        create("instance", props["name"], other, node="controller")
    assert id_ in cloud.resources
    monkeypatch.setenv(FORCE, "1")
    assert create("instance", props["name"], other, node="controller")[0] != id_


def test_a_filesystem_of_an_interrupted_run_grows_and_is_not_replaced(cloud: FakeCloud) -> None:
    id_, props = create_all()["filesystem"]
    again, _props = create("filesystem", props["name"], props["spec"] | {"sizeGibibytes": "2048"})
    assert (again, cloud.resources[id_]["spec"]["sizeGibibytes"]) == (id_, "2048")
    what = (
        r"^nebius: filesystem demo-shared exists with type NETWORK_SSD\. "
        r"Fix: write it into `nebius.filesystem_type`, or remove the filesystem if its data is not needed"
    )
    with pytest.raises(ResourceError, match=what):
        create("filesystem", props["name"], props["spec"] | {"type": "WEKA"})
    assert id_ in cloud.resources


def test_a_gpu_cluster_of_an_interrupted_run_is_created_again_on_another_fabric(cloud: FakeCloud) -> None:
    section = require_section(make_spec())
    id_, _props = create("GPU cluster", "demo-gpu", gpu_cluster_spec(section.groups["gpu"]))
    other = section.groups["gpu"].model_copy(update={"fabric": "fabric-4"})
    again, _props = create("GPU cluster", "demo-gpu", gpu_cluster_spec(other))
    assert again != id_
    assert [cluster["spec"] for cluster in cloud.of_kind("GpuCluster")] == [{"infinibandFabric": "fabric-4"}]


def test_every_kind_of_an_interrupted_run_is_taken_over_as_it_is(cloud: FakeCloud) -> None:
    resources = create_all()
    updates = [call for call in cloud.calls if call.startswith("Update")]
    for kind, (id_, props) in resources.items():
        assert create(kind, props["name"], props["spec"], parent=props["parent"])[0] == id_, kind
    assert [call for call in cloud.calls if call.startswith(("Update", "Delete"))] == updates == []


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_what_changes_in_place_is_what_the_api_can_change(kind: Kind) -> None:
    is_immutable = list_fields(f"{kind.package}.{kind.message}Spec")
    assert [name for name in kind.updatable if is_immutable[name]] == []
    assert kind.watched | kind.optional <= is_immutable.keys()


def test_a_stopped_instance_is_started_again(cloud: FakeCloud) -> None:
    id_, props = create_all()["instance"]
    cloud.resources[id_]["status"]["state"] = "STOPPED"
    read = PROVIDER.read(id_, props)
    assert read.outs["drift"] == ["state"]
    assert PROVIDER.diff(id_, read.outs, props).changes
    PROVIDER.update(id_, read.outs, props)
    assert cloud.resources[id_]["status"]["state"] == "RUNNING"
    assert "Start Instance" in cloud.calls


def test_a_stopped_instance_of_an_interrupted_run_is_started(cloud: FakeCloud) -> None:
    id_, props = create_all()["instance"]
    cloud.resources[id_]["status"]["state"] = "STOPPED"
    again, outputs = create("instance", props["name"], props["spec"], user_data=props["user_data"])
    assert again == id_
    assert cloud.resources[id_]["status"]["state"] == "RUNNING"
    assert outputs["drift"] == []


def test_waiting_for_an_instance_ends_when_it_is_stopped(cloud: FakeCloud, clock: Clock) -> None:
    id_, _props = create_all()["instance"]
    cloud.resources[id_]["status"]["state"] = "STOPPING"
    cloud.answers["Instance/Get"] = lambda _request: stop_next_time(cloud.resources[id_])
    with (
        pytest.raises(ResourceError, match=r"^nebius: instance demo-gpu-2 is in state STOPPED\. Fix: run it again"),
        open_cloud("nebius") as client,
    ):
        client.wait_until_ready(KINDS["instance"], id_)
    assert len(clock.slept) == 1


def stop_next_time(instance: Props) -> Props:
    """Return an instance as it is; the next answer says that it has stopped."""
    answer = {**instance, "status": dict(instance["status"])}
    instance["status"]["state"] = "STOPPED"
    return answer


CHANGES = {
    "filesystem grows": ("filesystem", {"sizeGibibytes": "2048"}, [], True),
    "other type of filesystem": ("filesystem", {"type": "WEKA"}, ["spec"], True),
    "other recovery": ("instance", {"recoveryPolicy": "FAIL"}, ["spec"], True),
    "other preset": ("instance", {"resources": {"platform": "gpu-h100-sxm", "preset": "other"}}, ["spec"], True),
    "other fabric": ("GPU cluster", {"infinibandFabric": "fabric-4"}, ["spec"], True),
    "other addresses": ("subnet", {"ipv4PrivatePools": {}}, ["spec"], True),
}


@pytest.mark.parametrize(("kind", "change", "replaces", "changes"), CHANGES.values(), ids=CHANGES)
def test_changes_in_place_and_by_replacement(
    cloud: FakeCloud, kind: str, change: Props, replaces: list[str], changes: bool
) -> None:
    id_, props = create_all()[kind]
    difference = PROVIDER.diff(id_, props, props | {"spec": props["spec"] | change})
    assert (difference.replaces, difference.changes, difference.delete_before_replace) == (replaces, changes, True)


def test_growing_a_filesystem_updates_it(cloud: FakeCloud) -> None:
    id_, props = create_all()["filesystem"]
    PROVIDER.update(id_, props, props | {"spec": props["spec"] | {"sizeGibibytes": "2048"}})
    assert cloud.resources[id_]["spec"]["sizeGibibytes"] == "2048"


def test_a_resource_in_use_is_not_deleted(cloud: FakeCloud) -> None:
    id_, props = create_all()["network"]
    with pytest.raises(InUseError, match=r"is used by demo.* Fix: wait until what uses it has been removed"):
        PROVIDER.delete(id_, props)


QUOTA = {"quotaFailure": {"violations": [{"quota": "compute.instance.gpu.h100", "limit": "8", "requested": "16"}]}}
LACK = {"notEnoughResources": {"violations": [{"resourceType": "gpu-h100-sxm", "requested": "8"}]}}
BAD = {"badRequest": {"violations": [{"field": "spec.resources.preset", "message": "unknown preset"}]}}
DENIED = {"permissionDenied": {"resourceId": "project-e00test"}}
ERRORS = {
    "quota": (
        (StatusCode.RESOURCE_EXHAUSTED, QUOTA),
        "the quota compute.instance.gpu.h100 is too low: limit 8, requested 16. Fix: request a higher quota",
    ),
    "no capacity": (
        (StatusCode.RESOURCE_EXHAUSTED, LACK),
        r"Nebius has no capacity for gpu-h100-sxm now \(requested 8\). Fix: try again later, or choose another fabric",
    ),
    "bad request": ((StatusCode.INVALID_ARGUMENT, BAD), "spec.resources.preset: unknown preset. Fix: correct"),
    "denied": ((StatusCode.PERMISSION_DENIED, DENIED), "may not use resource project-e00test. Fix: ask for the role"),
    "logged out": ((StatusCode.UNAUTHENTICATED, {}), "refused. Fix: log in again"),
}


@pytest.mark.parametrize("in_operation", [False, True], ids=["call", "operation"])
@pytest.mark.parametrize(("answer", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_name_property_cause_and_fix(
    cloud: FakeCloud, answer: tuple[StatusCode, Props], message: str, in_operation: bool
) -> None:
    code, details = answer
    cloud.fail("Create", "GpuCluster", code, "refused", details=details, in_operation=in_operation, times=99)
    with pytest.raises(ResourceError, match=rf"^nebius.groups.gpu.fabric: .*{message}"):
        create("GPU cluster", "demo-gpu", {"infinibandFabric": "fabric-3"}, where="nebius.groups.gpu.fabric")
    assert cloud.of_kind("GpuCluster") == []


def test_operations_that_take_time_are_waited_for(cloud: FakeCloud) -> None:
    cloud.polls = 5
    id_, _props = create("network", "demo", {})
    assert cloud.resources[id_]["status"]["state"] == "READY"


def test_a_boot_disk_has_the_labels_of_its_instance(cloud: FakeCloud) -> None:
    id_, props = create_all()["instance"]
    (disk,) = cloud.of_kind("Disk")
    assert disk["metadata"]["labels"] == LABELS
    # Other tags of the cluster need no other instance.
    news = props | {"labels": LABELS | {"team": "a"}}
    difference = PROVIDER.diff(id_, props, news)
    assert (difference.changes, difference.replaces) == (True, [])
    PROVIDER.update(id_, props, news)
    assert disk["metadata"]["labels"] == LABELS | {"team": "a"}


def test_user_data_is_sent_and_another_version_of_it_changes_nothing(cloud: FakeCloud) -> None:
    id_, props = create_all()["instance"]
    assert cloud.resources[id_]["spec"]["cloudInitUserData"] == "#cloud-config\n"
    assert "cloudInitUserData" not in props["spec"]
    assert not PROVIDER.diff(id_, props, props | {"user_data": "#cloud-config\nhostname: a\n"}).changes
