"""Launching with moto: few calls, whole jobs, correct names, no duplicates and no leftovers."""

from __future__ import annotations

from typing import Any

import pytest

from infra.targets.aws.launcher import launch as launching
from infra.targets.aws.launcher.api import AwsApi
from infra.targets.aws.launcher.fleet import Fleet, LaunchOption
from infra.targets.aws.launcher.instances import list_instances, terminate
from infra.targets.aws.launcher.launch import build_request, launch, split_into_calls
from infra.targets.aws.launcher.node_names import read_node_name, write_numbers
from slurm.power.launcher import LauncherError, Unit
from tests.moto_server import REGION, Moto
from tests.slurm.power.cluster import TYPE, Clock, list_running, make_fleet


def make_api(clock: Clock) -> AwsApi:
    return AwsApi(REGION, sleep=clock.sleep, clock=clock.now)


def names(first: int, last: int) -> Unit:
    return tuple(f"gpu-{n}" for n in range(first, last + 1))


def option(**changes: Any) -> LaunchOption:
    fields = {
        "purchase": "on-demand",
        "zone": "us-east-1a",
        "subnet_id": "subnet-1",
        "instance_type": TYPE,
        "launch_template_id": "lt-1",
        "launch_template_version": "3",
    }
    return LaunchOption.model_validate(fields | changes)


def make_request(fleet: Fleet, chosen: LaunchOption) -> dict[str, Any]:
    return build_request(fleet, chosen, names(1, 2), least=2, token="t")


def test_all_nodes_of_a_job_are_launched_and_named_in_one_call(aws: Moto, fleet: Fleet, clock: Clock) -> None:
    result = launch(make_api(clock), fleet, fleet.groups[0].options, [names(3, 18)], "t")
    assert aws.count() == {"RunInstances": 1}
    assert set(result.machines) == set(names(3, 18))
    assert {machine.zone for machine in result.machines.values()} == {"us-east-1a"}
    machines_by_name = list_instances(make_api(clock), fleet).by_name()
    assert {name: machine.id for name, machine in machines_by_name.items()} == {
        n: m.id for n, m in result.machines.items()
    }
    assert len({machine.address for machine in machines_by_name.values()}) == 16


@pytest.mark.parametrize("count", [1, 2])
def test_only_a_single_interface_says_that_it_has_no_public_address(fleet: Fleet, count: int) -> None:
    """EC2 does not support the option on a machine with several interfaces."""
    (group,) = fleet.groups
    changed = group.model_copy(update={"interfaces": group.interfaces[:count]})
    interfaces = make_request(fleet.model_copy(update={"groups": (changed,)}), option())["NetworkInterfaces"]
    assert [interface.get("AssociatePublicIpAddress") for interface in interfaces] == (
        [False] if count == 1 else [None, None]
    )


def test_a_fleet_of_an_older_version_launches_nothing_and_says_what_to_do(fleet: Fleet) -> None:
    old = fleet.model_copy(update={"groups": (fleet.groups[0].model_copy(update={"interfaces": ()}),)})
    message = r"the fleet has no interfaces for group gpu: an older version of muster wrote it; run `muster up`"
    with pytest.raises(LauncherError, match=message):
        make_request(old, option())


def test_interfaces_use_the_subnet_of_the_option(aws: Moto, fleet: Fleet, clock: Clock) -> None:
    launch(make_api(clock), fleet, fleet.groups[0].options, [names(1, 1)], "t")
    params = aws.of("RunInstances")[0].params
    subnet = fleet.groups[0].options[0].subnet_id
    assert [params[f"NetworkInterface.{n}.SubnetId"] for n in (1, 2)] == [subnet, subnet]
    assert params["NetworkInterface.2.InterfaceType"] == "efa-only"
    assert params["NetworkInterface.2.SecurityGroupId.1"] == fleet.groups[0].security_groups[0]
    assert "SubnetId" not in params


def test_after_a_shortage_the_next_zone_is_tried(aws: Moto, fleet: Fleet, clock: Clock) -> None:
    aws.capacity[(TYPE, "us-east-1a")] = 3
    result = launch(make_api(clock), fleet, fleet.groups[0].options, [names(1, 4)], "t")
    assert {machine.zone for machine in result.machines.values()} == {"us-east-1b"}
    assert [str(shortage) for shortage in result.shortages] == ["us-east-1a on-demand none"]
    assert len(list_running(aws)) == 4
    assert clock.slept == [], "a shortage is not retried at once"


def test_a_shortage_everywhere_leaves_no_machine(aws: Moto, fleet: Fleet, clock: Clock) -> None:
    aws.capacity |= {(TYPE, "us-east-1a"): 1, (TYPE, "us-east-1b"): 0}
    result = launch(make_api(clock), fleet, fleet.groups[0].options, [names(1, 2)], "t")
    assert (result.machines, result.missing) == ({}, [names(1, 2)])
    assert [str(shortage) for shortage in result.shortages] == [
        "us-east-1a on-demand none",
        "us-east-1b on-demand none",
    ]
    assert list_running(aws) == []


@pytest.mark.fault(26)
def test_jobs_are_launched_completely_or_not_at_all(aws: Moto, fleet: Fleet, clock: Clock) -> None:
    aws.capacity |= {(TYPE, "us-east-1a"): 3, (TYPE, "us-east-1b"): 0}
    result = launch(make_api(clock), fleet, fleet.groups[0].options, [names(1, 2), names(3, 4)], "t")
    assert sorted(result.machines) == ["gpu-1", "gpu-2"]
    assert result.missing == [names(3, 4)]
    assert str(result.shortages[0]) == "us-east-1a on-demand InsufficientInstanceCapacity (3 only)"
    assert len(list_running(aws)) == 2
    assert aws.count()["RunInstances"] == 2


def test_a_lost_answer_starts_nothing_twice(aws: Moto, fleet: Fleet, clock: Clock) -> None:
    aws.lose_answer("RunInstances", times=2)
    result = launch(make_api(clock), fleet, fleet.groups[0].options, [names(1, 3)], "t")
    assert sorted(result.machines) == ["gpu-1", "gpu-2", "gpu-3"]
    assert len(list_running(aws)) == 3
    assert len({call.params["ClientToken"] for call in aws.of("RunInstances")}) == 1


@pytest.mark.fault(25)
def test_throttling_is_retried_within_a_limit(aws: Moto, fleet: Fleet, clock: Clock) -> None:
    aws.fail("RunInstances", "RequestLimitExceeded", times=3)
    assert len(launch(make_api(clock), fleet, fleet.groups[0].options, [names(1, 1)], "t").machines) == 1
    assert len(clock.slept) == 3
    began = clock.now()
    aws.fail("DescribeInstances", "RequestLimitExceeded", times=1000)
    with pytest.raises(LauncherError, match="describe_instances: RequestLimitExceeded"):
        list_instances(make_api(clock), fleet)
    assert clock.now() - began <= 120


@pytest.mark.parametrize(
    "code", ["VcpuLimitExceeded", "InvalidCapacityReservationId.NotFound", "UnauthorizedOperation"]
)
def test_an_option_that_fails_does_not_stop_the_next(aws: Moto, fleet: Fleet, clock: Clock, code: str) -> None:
    aws.fail("RunInstances", code)
    result = launch(make_api(clock), fleet, fleet.groups[0].options, [names(1, 1)], "t")
    assert result.machines["gpu-1"].zone == "us-east-1b"
    assert str(result.shortages[0]) == f"us-east-1a on-demand {code}"


def test_requests_of_each_purchase_option(fleet: Fleet) -> None:
    assert "InstanceMarketOptions" not in make_request(fleet, option())
    spot = make_request(fleet, option(purchase="spot"))
    assert spot["InstanceMarketOptions"]["MarketType"] == "spot"
    assert "spot-instances-request" in [tagged["ResourceType"] for tagged in spot["TagSpecifications"]]
    reserved = make_request(fleet, option(purchase="reservation", reservation="cr-1", placement_group="pg"))
    assert reserved["CapacityReservationSpecification"] == {
        "CapacityReservationPreference": "capacity-reservations-only",
        "CapacityReservationTarget": {"CapacityReservationId": "cr-1"},
    }
    assert reserved["Placement"] == {"GroupName": "pg"}
    pool = make_request(fleet, option(purchase="reservation", reservation="arn:aws:resource-groups:x"))
    target = {"CapacityReservationResourceGroupArn": "arn:aws:resource-groups:x"}
    assert pool["CapacityReservationSpecification"]["CapacityReservationTarget"] == target
    block = make_request(fleet, option(purchase="block", reservation="cr-2"))
    assert block["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    assert block["CapacityReservationSpecification"] == {"CapacityReservationTarget": {"CapacityReservationId": "cr-2"}}


def test_everything_launched_has_the_tags_of_the_cluster(fleet: Fleet) -> None:
    for kind in make_request(fleet, option())["TagSpecifications"]:
        tags = {tag["Key"]: tag["Value"] for tag in kind["Tags"]}
        assert tags == {
            "muster.cluster": "demo",
            "muster.stack": "demo",
            "muster.role": "compute",
            "muster.group": "gpu",
            "muster.numbers": "1-2",
            "Name": "muster-demo-gpu",
            "owner": "research",
        }


def test_calls_are_split_by_size_and_length_of_the_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "MAX_PER_CALL", 4)
    assert split_into_calls([names(1, 2), names(3, 3)]) == [(list(names(1, 3)), 2)]
    assert split_into_calls([names(1, 6), names(7, 8)]) == [(list(names(1, 4)), 4), (list(names(5, 8)), 2)]
    monkeypatch.setattr(launching, "MAX_PER_CALL", 500)
    scattered = tuple(f"gpu-{n}" for n in range(1, 1000, 2))
    assert all(len(write_numbers(part)) <= 256 for part, _ in split_into_calls([scattered]))
    assert [name for part, _ in split_into_calls([scattered]) for name in part] == list(scattered)


@pytest.mark.parametrize("members", [names(1, 64), ("gpu-7",), ("gpu-3", "gpu-1", "gpu-2", "gpu-9")])
def test_a_machine_reads_its_name_at_its_launch_index(members: Unit) -> None:
    tags = {"muster.group": "gpu", "muster.numbers": write_numbers(members)}
    assert tuple(read_node_name(tags, index) for index in range(len(members))) == members
    assert read_node_name(tags, len(members)) is None
    assert read_node_name({"muster.group": "gpu"}, 0) is None


@pytest.mark.parametrize("numbers", ["x", "", "1-", "-1", "1,2", "1 x", "1-999999999999", " ".join(["1-400"] * 40)])
def test_a_forged_tag_names_no_machine(aws: Moto, fleet: Fleet, clock: Clock, numbers: str) -> None:
    """Otherwise the controller could list no machine at all, or run out of memory."""
    result = launch(make_api(clock), fleet, fleet.groups[0].options, [names(1, 2)], "t")
    forged = result.machines["gpu-2"].id
    tag = {"Key": "muster.numbers", "Value": numbers}
    make_api(clock).call("ec2", "create_tags", Resources=[forged], Tags=[tag])
    machines = list_instances(make_api(clock), fleet).machines
    assert {machine.id: machine.name for machine in machines} == {forged: "", result.machines["gpu-1"].id: "gpu-1"}


def test_a_forged_group_does_not_expand() -> None:
    tags = {"muster.group": "gpu-[1-999999999999]", "muster.numbers": "1"}
    assert read_node_name(tags, 0) == "gpu-[1-999999999999]-1"


def test_instances_of_another_cluster_are_not_listed(aws: Moto, fleet: Fleet, clock: Clock) -> None:
    other = make_fleet(aws, cluster="other", stack="other")
    launch(make_api(clock), other, other.groups[0].options, [names(1, 2)], "t")
    assert list_instances(make_api(clock), fleet).machines == ()
    assert len(list_instances(make_api(clock), other).machines) == 2


def test_a_missing_instance_does_not_stop_others_from_terminating(aws: Moto, fleet: Fleet, clock: Clock) -> None:
    result = launch(make_api(clock), fleet, fleet.groups[0].options, [names(1, 3)], "t")
    aws.fail("TerminateInstances", "InvalidInstanceID.NotFound", times=2)
    terminate(make_api(clock), result.machines.values())
    # Two calls fail: the one for all three instances, and the one for the missing instance.
    assert len(list_running(aws)) == 1
    assert aws.count()["TerminateInstances"] == 4
