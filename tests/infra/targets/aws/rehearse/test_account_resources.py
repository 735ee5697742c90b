"""The listing of an account before and after a rehearsal: what AWS creates by itself does not count as left."""

from __future__ import annotations

from infra.targets.aws.rehearse.account_resources import list_own_keys
from tests.moto_server import REGION, Moto


def test_the_key_that_aws_creates_for_disks_is_not_ours(aws: Moto) -> None:
    kms = aws.client("kms")
    before = set(list_own_keys(kms))
    aws.client("ec2").create_volume(AvailabilityZone=f"{REGION}a", Size=8, Encrypted=True)
    assert set(list_own_keys(kms)) == before
    own = kms.create_key()["KeyMetadata"]["KeyId"]
    assert set(list_own_keys(kms)) - before == {("Keys", own)}
    kms.schedule_key_deletion(KeyId=own)
    assert set(list_own_keys(kms)) == before
