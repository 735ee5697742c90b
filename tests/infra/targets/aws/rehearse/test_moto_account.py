"""The account after a teardown: what is billed by the hour is found, whatever its tags."""

from __future__ import annotations

from infra.targets.aws.rehearse.moto_account import MotoAccount
from tests.moto_server import ACCOUNT, REGION, Moto


def test_billed_resources_are_found_without_tags(aws: Moto) -> None:
    account = MotoAccount(ACCOUNT, REGION)
    assert account.list_billed() == []
    volume = aws.client("ec2").create_volume(AvailabilityZone=f"{REGION}a", Size=8)["VolumeId"]
    address = aws.client("ec2").allocate_address(Domain="vpc")["AllocationId"]
    files = aws.client("efs").create_file_system(CreationToken="x")["FileSystemId"]
    assert account.list_billed() == [f"volume {volume}", f"address {address}", f"filesystem {files}"]


def test_a_request_comes_from_its_own_vpc_if_that_has_an_endpoint(aws: Moto) -> None:
    account, ec2 = MotoAccount(ACCOUNT, REGION), aws.client("ec2")
    private, other = (ec2.create_vpc(CidrBlock=f"10.{i}.0.0/16")["Vpc"]["VpcId"] for i in (1, 2))
    ec2.create_vpc_endpoint(VpcId=private, ServiceName=f"com.amazonaws.{REGION}.ssm")
    assert account.describe_source("ssm", private) == {"aws:SourceVpc": private}
    assert account.describe_source("ssm", other) == {}
    assert account.describe_source("s3", private) == {}
