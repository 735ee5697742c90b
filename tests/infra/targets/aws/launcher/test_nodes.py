"""The nodes of a group as a Pulumi resource, with moto: create, read, resize, shortages, delete."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pulumi.output import UNKNOWN

from infra.resources.error import ResourceError
from infra.targets.aws.build.nodes import Group, NodesProvider
from infra.targets.aws.launcher.api import AwsApi
from infra.targets.aws.launcher.fleet import Fleet
from infra.targets.aws.launcher.instances import HELD_TAG, list_instances
from slurm.power.context import Context
from slurm.power.programs import resume
from tests.moto_server import REGION, Moto
from tests.slurm.power.cluster import TYPE, ZONES, Clock, list_running, make_fleet, read_records


def inputs(of: Fleet, **changes: object) -> dict[str, object]:
    fields = {"group": "gpu", "static": 2.0, "count": 8.0, "machine": "p5 ami-1", "fleet": of.model_dump_json()}
    return fields | changes


@pytest.fixture
def group(fleet: Fleet, clock: Clock) -> Group:
    api = AwsApi(REGION, sleep=clock.sleep, clock=clock.now)
    return Group(api, fleet, "gpu", 2, 8, sleep=clock.sleep, clock=clock.now)


@pytest.fixture
def controller(aws: Moto, fleet: Fleet) -> str:
    tags = {"muster.cluster": "demo", "muster.stack": "demo", "muster.role": "controller"}
    specification = [{"ResourceType": "instance", "Tags": [{"Key": k, "Value": v} for k, v in tags.items()]}]
    launched = aws.client("ec2").run_instances(ImageId="ami-1", MinCount=1, MaxCount=1, TagSpecifications=specification)
    return str(launched["Instances"][0]["InstanceId"])


def test_create_read_and_delete(aws: Moto, fleet: Fleet) -> None:
    provider, props = NodesProvider(), inputs(fleet)
    created = provider.create(props)
    assert created.id == "nodes-demo-gpu"
    assert created.outs is not None
    assert created.outs["names"] == ["gpu-1", "gpu-2"]
    assert sorted(read_records(aws, fleet)) == ["gpu-1", "gpu-2"]
    assert provider.read(created.id, created.outs).outs == created.outs
    assert not provider.diff(created.id, created.outs, props).changes
    provider.create(props)
    assert len(list_running(aws)) == 2, "a create after an interrupted one launches nothing new"
    provider.delete(created.id, created.outs)
    assert list_running(aws) == []
    provider.delete(created.id, created.outs)


def test_nodes_whose_state_has_the_fleet_of_an_older_version_are_read_and_deleted(aws: Moto, fleet: Fleet) -> None:
    provider, props = NodesProvider(), inputs(fleet)
    outs = provider.create(props).outs or {}
    old = json.loads(fleet.model_dump_json())
    for group in old["groups"]:
        del group["interfaces"], group["security_groups"]
    outs |= {"fleet": json.dumps(old)}
    assert provider.read("id", outs).outs["missing"] == []
    provider.delete("id", outs)
    assert list_running(aws) == []


def test_a_missing_machine_is_noticed_and_replaced(aws: Moto, fleet: Fleet) -> None:
    provider, props = NodesProvider(), inputs(fleet)
    outs = provider.create(props).outs
    aws.client("ec2").terminate_instances(InstanceIds=[list_running(aws)[0]["InstanceId"]])
    refreshed = provider.read("id", outs or {}).outs
    assert refreshed["missing"] == ["gpu-1"]
    assert provider.diff("id", refreshed, props).changes
    provider.update("id", refreshed, props)
    assert len(list_running(aws)) == 2


@pytest.mark.parametrize(
    ("change", "changes", "replaces"),
    [
        ({}, False, []),
        ({"static": 3.0}, True, []),
        ({"machine": "p5 ami-2"}, True, ["machine"]),
        ({"machine": UNKNOWN, "fleet": UNKNOWN}, False, []),
    ],
)
def test_changes_that_replace_the_machines(
    fleet: Fleet, change: dict[str, object], changes: bool, replaces: list[str]
) -> None:
    olds = inputs(fleet, missing=[], names=[])
    result = NodesProvider().diff("id", olds, inputs(fleet, **change))
    assert (result.changes, result.replaces, result.delete_before_replace) == (changes, replaces, True)


def test_nodes_that_slurm_launched_stay_within_the_size_of_the_group(aws: Moto, group: Group, context: Context) -> None:
    group.ensure()
    resume(context, ["gpu-5", "gpu-8"], [])
    replace(group, static=3, count=6).ensure()
    assert sorted(list_instances(group.api, group.fleet).by_name()) == ["gpu-1", "gpu-2", "gpu-3", "gpu-5"]


def with_fallback_type(fleet: Fleet) -> Fleet:
    (gpu, *others) = fleet.groups
    fallback = [option.model_copy(update={"instance_type": "p5en.48xlarge"}) for option in gpu.options]
    return fleet.model_copy(update={"groups": (gpu.model_copy(update={"options": (*gpu.options, *fallback)}), *others)})


def test_the_next_type_is_tried_when_no_zone_has_the_first(aws: Moto, group: Group) -> None:
    aws.capacity |= {(TYPE, zone): 1 for zone in ZONES}
    replace(group, fleet=with_fallback_type(group.fleet)).ensure()
    assert [machine["InstanceType"] for machine in list_running(aws)] == ["p5en.48xlarge"] * 2


@pytest.mark.fault(26)
def test_a_shortage_of_every_type_names_the_types(aws: Moto, group: Group) -> None:
    aws.capacity |= {(kind, zone): 0 for kind in (TYPE, "p5en.48xlarge") for zone in ZONES}
    with pytest.raises(ResourceError) as error:
        replace(group, fleet=with_fallback_type(group.fleet)).ensure()
    nowhere = "us-east-1a on-demand none, us-east-1b on-demand none"
    assert f"p5.48xlarge: {nowhere}; p5en.48xlarge: {nowhere}. Fix" in str(error.value)


@pytest.mark.fault(26)
def test_all_or_none_are_launched_and_a_shortage_names_the_zones(
    aws: Moto, group: Group, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_PROGRESS", str(tmp_path / "progress"))
    aws.capacity |= {(TYPE, zone): 1 for zone in ZONES}
    began = clock.now()
    with pytest.raises(
        ResourceError, match=r"groups\.gpu\.capacity: 2 machines could not be launched within 600 s"
    ) as error:
        group.ensure()
    assert "us-east-1a on-demand none, us-east-1b on-demand none. Fix: add zones, a fallback or fallback_types" in str(
        error.value
    )
    assert clock.now() - began <= 600
    assert list_running(aws) == []
    events = [json.loads(line) for line in (tmp_path / "progress").read_text().splitlines()]
    assert events[0] | {"t": 0} == {
        "phase": "machines",
        "node": "gpu-1",
        "step": "launch",
        "state": "start",
        "detail": "",
        "t": 0,
    }
    assert events[2]["detail"] == "us-east-1a on-demand none, us-east-1b on-demand none; retrying"
    assert {event["node"] for event in events if event["state"] == "failed"} == {"gpu-1", "gpu-2"}


def test_a_temporary_shortage_is_retried(aws: Moto, group: Group, clock: Clock) -> None:
    aws.fail("RunInstances", "InsufficientInstanceCapacity", times=4)
    group.ensure()
    assert len(list_running(aws)) == 2
    assert clock.slept == [30.0, 30.0]


def test_errors_that_retrying_cannot_fix_are_reported_at_once(aws: Moto, group: Group, clock: Clock) -> None:
    aws.fail("RunInstances", "VcpuLimitExceeded", times=2)
    with pytest.raises(
        ResourceError, match=r"VcpuLimitExceeded: injected\. Fix: request a higher quota under Service Quotas"
    ):
        group.ensure()
    assert clock.slept == []


def test_nothing_is_launched_for_a_group_that_is_being_removed(
    aws: Moto, group: Group, context: Context, controller: str
) -> None:
    group.ensure()
    resume(context, ["gpu-7"], [])
    group.remove()
    assert list_instances(group.api, group.fleet).closed == {"gpu"}
    assert resume(context, ["gpu-7"], []).up == {}
    assert [machine["InstanceId"] for machine in list_running(aws)] == [controller]
    group.ensure()
    assert list_instances(group.api, group.fleet).closed == frozenset()
    assert sorted(resume(context, ["gpu-7"], []).up) == ["gpu-7"]


def test_up_ends_a_wait_that_an_upgrade_left_even_if_nothing_else_changes(
    aws: Moto, fleet: Fleet, context: Context, controller: str
) -> None:
    """After `muster upgrade --back` the cluster is what the last `up` left, and the upgrade may have been killed."""
    provider, props = NodesProvider(), inputs(fleet)
    outs = provider.create(props).outs or {}
    aws.client("ec2").create_tags(Resources=[controller], Tags=[{"Key": HELD_TAG, "Value": "gpu other"}])
    assert resume(context, ["gpu-7"], []).up == {}
    refreshed = provider.read("id", outs).outs
    assert provider.diff("id", refreshed, props).changes
    updated = provider.update("id", refreshed, props).outs
    assert updated is not None
    assert not provider.diff("id", provider.read("id", updated).outs, props).changes
    assert list_instances(AwsApi(REGION), fleet).held == {"other"}
    assert sorted(resume(context, ["gpu-7"], []).up) == ["gpu-7"]


def test_a_replaced_group_stays_closed_until_all_of_its_nodes_are_launched(
    aws: Moto, group: Group, clock: Clock, controller: str
) -> None:
    """The controller would launch one node where capacity lasts for one, and EFA does not cross zones."""
    group = replace(group, fleet=make_fleet(aws, groups=("gpu", "other")))
    other = replace(group, name="other", static=0)
    for removed in (group, other):
        removed.remove()
    aws.fail("RunInstances", "InsufficientInstanceCapacity", times=2)
    closed: list[frozenset[str]] = []

    def look(seconds: float) -> None:
        clock.sleep(seconds)
        closed.append(list_instances(group.api, group.fleet).closed)
        other.ensure()

    replace(group, sleep=look).ensure()
    assert closed == [{"gpu", "other"}]
    assert list_instances(group.api, group.fleet).closed == frozenset(), "a group that opened meanwhile stays open"


def test_machines_that_do_not_terminate_are_named(
    aws: Moto, group: Group, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    group.ensure()
    monkeypatch.setattr("infra.targets.aws.build.nodes.terminate", lambda _api, some: [machine.id for machine in some])
    monkeypatch.setattr("infra.targets.aws.build.nodes._POLL_S", 60.0)  # moto would answer 240 calls otherwise
    began = clock.now()
    with pytest.raises(ResourceError, match=r"groups.gpu: i-\w+, i-\w+ did not terminate within 1200 s"):
        group.remove()
    assert clock.now() - began < 1300


def test_a_machine_that_the_controller_launched_during_a_shortage_is_not_launched_twice(
    aws: Moto, group: Group, clock: Clock, context: Context
) -> None:
    """Both launch static nodes that are missing; the controller may be the first to get one."""
    aws.capacity |= {(TYPE, zone): 1 for zone in ZONES}

    def controller_launches(seconds: float) -> None:
        clock.sleep(seconds)
        resume(context, ["gpu-1"], [])
        aws.capacity |= {(TYPE, zone): 1 for zone in ZONES}

    replace(group, sleep=controller_launches).ensure()
    assert sorted(machine.name for machine in list_instances(group.api, group.fleet).machines) == ["gpu-1", "gpu-2"]


def test_a_group_that_is_removed_ends_the_machine_of_a_killed_image_build(aws: Moto, group: Group) -> None:
    tags = [{"Key": "muster.cluster", "Value": "demo"}, {"Key": "muster.role", "Value": "image"}]
    specification = [{"ResourceType": "instance", "Tags": tags}]
    aws.client("ec2").run_instances(ImageId="ami-1", MinCount=1, MaxCount=1, TagSpecifications=specification)
    group.remove()
    assert list_running(aws) == []
