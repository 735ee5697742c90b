"""Resources that take time: they are not available before the delay has passed, and a deleted one stays deleted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError

from infra.targets.aws.rehearse import moto_gaps
from infra.targets.aws.rehearse.delays import Clock
from infra.targets.aws.rehearse.moto_account import MotoAccount
from infra.targets.aws.rehearse.moto_states import delay_resources
from infra.targets.aws.rehearse.timeline import Timeline
from tests.moto_server import ACCOUNT, REGION, Moto


@pytest.fixture
def end() -> threading.Event:
    return threading.Event()


@pytest.fixture
def delayed(aws: Moto, end: threading.Event) -> Iterator[Moto]:
    """Yield an account in which all delays end together."""
    moto_gaps.apply()
    # Longer than a test takes on a busy machine.
    with delay_resources(Clock(1, 1, sleep=lambda _: end.wait(240)), Timeline()):
        yield aws
    end.set()


@pytest.fixture
def subnet(delayed: Moto) -> str:
    vpc = delayed.client("ec2").create_vpc(CidrBlock="10.5.0.0/16")["Vpc"]["VpcId"]
    return str(delayed.client("ec2").create_subnet(VpcId=vpc, CidrBlock="10.5.0.0/24")["Subnet"]["SubnetId"])


def wait_for(read: Any, value: object) -> None:
    deadline = time.monotonic() + 120
    while read() != value:
        assert time.monotonic() < deadline, read()
        time.sleep(0.01)


def test_lustre_is_available_and_has_a_name_after_its_delay(delayed: Moto, subnet: str, end: threading.Event) -> None:
    fsx, account = delayed.client("fsx"), MotoAccount(ACCOUNT, REGION)
    created = fsx.create_file_system(FileSystemType="LUSTRE", StorageCapacity=1200, SubnetIds=[subnet])["FileSystem"]
    id_ = created["FileSystemId"]
    assert created["Lifecycle"] == "CREATING"
    assert (account.list_file_systems(), account.list_mountable()) == ([id_], [])
    end.set()
    wait_for(lambda: fsx.describe_file_systems(FileSystemIds=[id_])["FileSystems"][0]["Lifecycle"], "AVAILABLE")
    assert account.list_mountable() == [id_]
    assert account.list_billed() == [f"filesystem {id_}"]


def test_efs_has_a_name_once_a_mount_target_is_available(delayed: Moto, subnet: str, end: threading.Event) -> None:
    efs, account = delayed.client("efs"), MotoAccount(ACCOUNT, REGION)
    id_ = efs.create_file_system(CreationToken="x")["FileSystemId"]
    target = efs.create_mount_target(FileSystemId=id_, SubnetId=subnet)
    assert target["LifeCycleState"] == "creating"
    assert account.list_mountable() == []
    end.set()
    wait_for(lambda: ",".join(account.list_mountable()), id_)


def test_a_gateway_that_is_deleted_before_its_delay_ends_stays_deleted(
    delayed: Moto, subnet: str, end: threading.Event
) -> None:
    ec2, account = delayed.client("ec2"), MotoAccount(ACCOUNT, REGION)
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    gateway = ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address)["NatGateway"]
    assert gateway["State"] == "pending"
    assert f"NAT gateway {gateway['NatGatewayId']}" in account.list_billed()
    ec2.delete_nat_gateway(NatGatewayId=gateway["NatGatewayId"])
    end.set()
    time.sleep(0.05)
    assert account.list_billed() == [f"address {address}"]


def test_what_is_deleted_is_listed_until_its_delay_ends(delayed: Moto, subnet: str, end: threading.Event) -> None:
    """What depends on it cannot be deleted meanwhile, as on AWS."""
    ec2, efs, fsx = (delayed.client(service) for service in ("ec2", "efs", "fsx"))
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    gateway = ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address)["NatGateway"]["NatGatewayId"]
    system = efs.create_file_system(CreationToken="y")["FileSystemId"]
    target = efs.create_mount_target(FileSystemId=system, SubnetId=subnet)["MountTargetId"]
    lustre = fsx.create_file_system(FileSystemType="LUSTRE", StorageCapacity=1200, SubnetIds=[subnet])
    id_ = lustre["FileSystem"]["FileSystemId"]
    for _ in range(2):  # a second request changes nothing
        ec2.delete_nat_gateway(NatGatewayId=gateway)
        efs.delete_mount_target(MountTargetId=target)
        fsx.delete_file_system(FileSystemId=id_)
    assert ec2.describe_nat_gateways(NatGatewayIds=[gateway])["NatGateways"][0]["State"] == "deleting"
    assert efs.describe_mount_targets(MountTargetId=target)["MountTargets"][0]["LifeCycleState"] == "deleting"
    assert fsx.describe_file_systems(FileSystemIds=[id_])["FileSystems"][0]["Lifecycle"] == "DELETING"
    with pytest.raises(ClientError, match="FileSystemInUse"):
        efs.delete_file_system(FileSystemId=system)
    with pytest.raises(ClientError, match="DependencyViolation"):
        ec2.delete_subnet(SubnetId=subnet)
    end.set()
    wait_for(lambda: ec2.describe_nat_gateways(NatGatewayIds=[gateway])["NatGateways"][0]["State"], "deleted")
    wait_for(lambda: len(efs.describe_mount_targets(FileSystemId=system)["MountTargets"]), 0)
    wait_for(lambda: len(fsx.describe_file_systems()["FileSystems"]), 0)
    efs.delete_file_system(FileSystemId=system)
    ec2.delete_subnet(SubnetId=subnet)
