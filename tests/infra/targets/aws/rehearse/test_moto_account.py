"""The account after a teardown: what is billed by the hour is found, whatever its tags."""

from __future__ import annotations

from infra.targets.aws.rehearse.moto_account import MotoAccount
from tests.moto_server import ACCOUNT, REGION, Moto, aws, moto  # noqa: F401  # fixtures


def test_billed_resources_are_found_without_tags(aws: Moto) -> None:  # noqa: F811
    account = MotoAccount(ACCOUNT, REGION)
    assert account.list_billed() == []
    volume = aws.client("ec2").create_volume(AvailabilityZone=f"{REGION}a", Size=8)["VolumeId"]
    address = aws.client("ec2").allocate_address(Domain="vpc")["AllocationId"]
    files = aws.client("efs").create_file_system(CreationToken="x")["FileSystemId"]
    assert account.list_billed() == [f"volume {volume}", f"address {address}", f"filesystem {files}"]
