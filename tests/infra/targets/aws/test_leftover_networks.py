"""Removal of security groups and mount targets by tag, without Pulumi's state: in the right order, and only our own."""

from __future__ import annotations

import time
from functools import partial

import pytest

from infra.resources.error import ResourceError
from infra.targets.aws.leftovers import search
from infra.targets.aws.leftovers.kind import AccountRegion
from infra.targets.aws.rehearse import moto_gaps
from infra.targets.target import Leftover
from tests.infra.targets.aws.leftover_resources import OURS, THEIRS, create_network, list_leftovers, spec, tags
from tests.moto_server import REGION, Moto


@pytest.fixture(autouse=True)
def _fill_moto_gaps() -> None:
    """Let moto refuse to remove what is in use."""
    moto_gaps.apply()


def test_groups_that_refer_to_each_other_are_removed_at_once(aws: Moto) -> None:
    """The first of them was refused for a minute, until the rules of the second were removed."""
    subnet, nodes = create_network(aws, OURS)
    ec2 = aws.client("ec2")
    vpc = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["VpcId"]
    create = partial(ec2.create_security_group, Description="storage", VpcId=vpc)
    storage = create(GroupName="storage", **spec("security-group", OURS))["GroupId"]
    foreign = create(GroupName="foreign")["GroupId"]
    for group, other in ((nodes, storage), (storage, nodes), (foreign, foreign)):
        pair = [{"IpProtocol": "tcp", "FromPort": 1, "ToPort": 2, "UserIdGroupPairs": [{"GroupId": other}]}]
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=pair)
        ec2.authorize_security_group_egress(GroupId=group, IpPermissions=pair)
    groups = [leftover for leftover in list_leftovers(OURS) if leftover.kind == "security group"]
    assert {group.name for group in groups} == {nodes, storage}
    for group in groups:
        search.remove_leftover(group, time.monotonic(), AccountRegion(REGION), sleep=pytest.fail)
    (left,) = (group for group in ec2.describe_security_groups()["SecurityGroups"] if group["GroupName"] == "foreign")
    assert len(left["IpPermissions"]) == 1


def test_a_group_that_a_foreign_group_refers_to_is_refused(aws: Moto) -> None:
    """Rules of a group that is not the cluster's are not touched."""
    subnet, nodes = create_network(aws, OURS)
    ec2 = aws.client("ec2")
    vpc = ec2.describe_subnets(SubnetIds=[subnet])["Subnets"][0]["VpcId"]
    foreign = ec2.create_security_group(GroupName="foreign", Description="foreign", VpcId=vpc)["GroupId"]
    pair = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": nodes}]}]
    ec2.authorize_security_group_ingress(GroupId=foreign, IpPermissions=pair)
    group = Leftover("security group", nodes, region=REGION)
    with pytest.raises(ResourceError, match=f"security group {nodes}: DependencyViolation"):
        search.remove_leftover(group, time.monotonic(), AccountRegion(REGION), sleep=lambda _s: None)


@pytest.mark.fault(29)
def test_mount_targets_of_a_kept_filesystem_are_removed_with_the_network(aws: Moto) -> None:
    """They held the subnets and security groups for 20 minutes if Pulumi's state was lost."""
    subnet, group = create_network(aws, OURS)
    other_subnet, other_group = create_network(aws, THEIRS)
    efs = aws.client("efs")
    filesystem = efs.create_file_system(CreationToken=OURS, Tags=tags(OURS, **{"muster.keep": "true"}))["FileSystemId"]
    efs.create_mount_target(FileSystemId=filesystem, SubnetId=subnet, SecurityGroups=[group])
    theirs = efs.create_file_system(CreationToken=THEIRS, Tags=tags(THEIRS))["FileSystemId"]
    efs.create_mount_target(FileSystemId=theirs, SubnetId=other_subnet, SecurityGroups=[other_group])
    leftovers = list_leftovers(OURS)
    assert [leftover.kind for leftover in leftovers if leftover.keep_reason] == ["EFS filesystem"]
    for leftover in leftovers:
        if not leftover.keep_reason:
            search.remove_leftover(leftover, time.monotonic(), AccountRegion(REGION), sleep=pytest.fail)
    assert [leftover.name for leftover in list_leftovers(OURS)] == [filesystem]
    assert efs.describe_mount_targets(FileSystemId=filesystem)["MountTargets"] == []
    assert len(efs.describe_mount_targets(FileSystemId=theirs)["MountTargets"]) == 1


def test_a_mount_target_that_somebody_else_added_is_not_a_leftover(aws: Moto) -> None:
    create_network(aws, OURS)
    subnet, group = create_network(aws, THEIRS)
    efs = aws.client("efs")
    filesystem = efs.create_file_system(CreationToken=OURS, Tags=tags(OURS, **{"muster.keep": "true"}))["FileSystemId"]
    efs.create_mount_target(FileSystemId=filesystem, SubnetId=subnet, SecurityGroups=[group])
    assert "EFS mount target" not in {leftover.kind for leftover in list_leftovers(OURS)}
