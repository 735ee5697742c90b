"""Instances of moto in a rehearsal: their ends, disks, interfaces and addresses are as on EC2."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ipaddress import IPv4Network
from typing import Any

import pytest

from infra.resources.error import ResourceError
from infra.targets.aws.rehearse import moto_gaps, moto_hooks
from infra.targets.aws.rehearse.instances import Instances
from tests.infra.targets.aws.rehearse.instances_without_docker import TYPE, Engine, make_instances, wait_for
from tests.moto_server import Moto

# Eleven addresses: AWS reserves four, and the last one is the broadcast address.
SUBNET = IPv4Network("10.96.0.0/28")
RESERVED = {str(SUBNET[number]) for number in (0, 1, 2, 3, -1)}

Connect = Callable[[Callable[[float], object]], Instances]


class Account:
    """A subnet in which instances are launched."""

    def __init__(self, ec2: Any) -> None:
        self.ec2 = ec2
        vpc = ec2.create_vpc(CidrBlock=str(SUBNET))["Vpc"]["VpcId"]
        self.subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=str(SUBNET))["Subnet"]["SubnetId"]
        self.image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]

    def launch(self, **interface: Any) -> dict[str, Any]:
        own = interface or {"SubnetId": self.subnet, "DeleteOnTermination": True}
        launched: dict[str, Any] = self.ec2.run_instances(
            ImageId=self.image,
            MinCount=1,
            MaxCount=1,
            InstanceType=TYPE,
            NetworkInterfaces=[{"DeviceIndex": 0, **own}],
        )["Instances"][0]
        return launched

    def create_interface(self) -> dict[str, Any]:
        interface: dict[str, Any] = self.ec2.create_network_interface(SubnetId=self.subnet)["NetworkInterface"]
        return interface

    def describe(self, instance_id: str) -> dict[str, Any]:
        reservations = self.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
        described: dict[str, Any] = reservations[0]["Instances"][0]
        return described


@pytest.fixture
def account(aws: Moto) -> Account:
    moto_gaps.apply()
    return Account(aws.client("ec2"))


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Return a function that connects moto to new instances, which call `sleep` for each delay."""
    with ExitStack() as stack:

        def connect_new(sleep: Callable[[float], object]) -> Instances:
            instances = make_instances(sleep)
            instances.listing_s = -60.0
            stack.enter_context(moto_hooks.connect_instances(instances))
            stack.callback(instances.close)
            return instances

        yield connect_new


def test_a_launch_that_fails_leaves_no_disk_and_no_interface(
    account: Account, engine: Engine, connect: Connect
) -> None:
    def refuse() -> None:
        raise ResourceError("", "Docker refused: Address already in use", "")

    engine.while_starting = refuse
    instances = connect(lambda _: None)
    fixed = account.create_interface()["NetworkInterfaceId"]
    ids = [account.launch()["InstanceId"], account.launch(NetworkInterfaceId=fixed)["InstanceId"]]
    wait_for(lambda: all(instances.by_id[id_].is_booted.is_set() for id_ in ids))
    for id_ in ids:
        described = account.describe(id_)
        assert described["State"]["Name"] == "terminated"
        assert described["StateReason"]["Code"] == "Server.InternalError"
        assert "Docker refused: Address already in use" in described["StateReason"]["Message"]
    assert account.ec2.describe_volumes()["Volumes"] == []
    in_subnet = [{"Name": "subnet-id", "Values": [account.subnet]}]
    left = account.ec2.describe_network_interfaces(Filters=in_subnet)["NetworkInterfaces"]
    assert [interface["NetworkInterfaceId"] for interface in left] == [fixed]
    assert len(instances.failures) == len(ids)


@pytest.mark.usefixtures("engine")
def test_a_lost_instance_shows_that_ec2_has_ended_it(account: Account, connect: Connect) -> None:
    instances = connect(lambda _: None)
    id_ = account.launch()["InstanceId"]
    wait_for(lambda: instances.by_id[id_].is_registered)
    instances.lose(id_)
    wait_for(lambda: bool(account.describe(id_)["State"]["Name"] == "terminated"))
    assert account.describe(id_)["StateReason"]["Code"] == "Server.InternalError"


@pytest.mark.usefixtures("engine")
def test_an_address_is_given_away_only_when_its_instance_has_ended(account: Account, connect: Connect) -> None:
    is_blocking, may_end = threading.Event(), threading.Event()

    def sleep(_seconds: float) -> None:
        if is_blocking.is_set():
            may_end.wait(240)

    instances = connect(sleep)
    first = account.launch()
    wait_for(lambda: instances.by_id[first["InstanceId"]].is_registered)
    is_blocking.set()
    account.ec2.terminate_instances(InstanceIds=[first["InstanceId"]])
    second = account.launch()
    assert account.describe(first["InstanceId"])["State"]["Name"] == "shutting-down"
    assert second["PrivateIpAddress"] != first["PrivateIpAddress"]
    may_end.set()
    wait_for(lambda: "terminated" in [event.what for event in instances.timeline.events])
    assert account.launch()["PrivateIpAddress"] == first["PrivateIpAddress"]


def test_interfaces_and_instances_have_addresses_of_their_own(account: Account) -> None:
    addresses = [account.create_interface()["PrivateIpAddress"] for _ in range(8)]
    addresses += [account.launch()["PrivateIpAddress"] for _ in range(3)]
    assert len(set(addresses)) == len(addresses)
    assert not RESERVED & set(addresses)


@pytest.mark.parametrize(("behavior", "state"), [("terminate", "terminated"), ("stop", "stopped")])
def test_an_instance_that_shuts_itself_down_ends_as_its_template_says(
    account: Account, connect: Connect, engine: Engine, behavior: str, state: str
) -> None:
    instances = connect(lambda _: None)
    data = {"ImageId": account.image, "InstanceType": TYPE, "InstanceInitiatedShutdownBehavior": behavior}
    account.ec2.create_launch_template(LaunchTemplateName="node", LaunchTemplateData=data)
    template = {"LaunchTemplateName": "node"}
    launched = account.ec2.run_instances(LaunchTemplate=template, SubnetId=account.subnet, MinCount=1, MaxCount=1)
    instance = instances.by_id[launched["Instances"][0]["InstanceId"]]
    wait_for(lambda: instance.is_registered)
    container = instances.container(instance.id)
    engine.powered_off.add(container)
    engine.restarting.add(container)
    wait_for(lambda: account.describe(instance.id)["State"]["Name"] == state)
    instances.close()
    assert container not in engine.running
    assert instances.failures == []
    reason = account.describe(instance.id)["StateReason"]["Code"]
    assert (reason == "Client.InstanceInitiatedShutdown") is (behavior == "terminate")
