"""Values that are read from AWS once and then stay: account, images, zone, existing networks and filesystems."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from infra.resources.error import ResourceError
from infra.targets.aws.build.resolved import ResolvedArgs, ResolvedProvider
from infra.targets.aws.build.secrets import HostKeysProvider
from tests.moto_server import ACCOUNT, REGION, Moto

# A parameter that moto publishes; the deep learning images have similar paths.
PARAMETER = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
ARGS = ResolvedArgs(
    region=REGION,
    parameters={"plain-x86_64": PARAMETER},
    instance_types=["g6.8xlarge", "m7i.large"],
    vpc_id=None,
    subnet_ids=[],
    filesystem_ids=[],
)


def resolve(args: ResolvedArgs) -> dict[str, Any]:
    return dict(ResolvedProvider().create(dict(vars(args))).outs)


def resolve_again(olds: dict[str, Any], args: ResolvedArgs) -> dict[str, Any]:
    return dict(ResolvedProvider().update("id", olds, dict(vars(args))).outs)


def changes(olds: dict[str, Any], args: ResolvedArgs) -> bool:
    return bool(ResolvedProvider().diff("id", olds, dict(vars(args))).changes)


def test_account_image_and_zone_are_resolved(aws: Moto) -> None:
    values = resolve(ARGS)
    assert (values["account"], values["partition"]) == (ACCOUNT, "aws")
    assert values["images"]["plain-x86_64"].startswith("ami-")
    offered = aws.client("ec2").describe_instance_type_offerings(
        LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": ["g6.8xlarge"]}]
    )
    assert values["zone"] in [offering["Location"] for offering in offered["InstanceTypeOfferings"]]


def test_resolved_values_are_not_read_again(aws: Moto) -> None:
    first = resolve(ARGS)
    stored = first | {"images": {"plain-x86_64": "ami-old"}, "zone": first["zone"]}
    assert not changes(stored, ARGS)
    aws.calls.clear()
    more = replace(ARGS, parameters={**ARGS.parameters, "gpu-x86_64": PARAMETER})
    assert changes(stored, more)
    after = resolve_again(stored, more)
    assert after["images"]["plain-x86_64"] == "ami-old"
    assert after["images"]["gpu-x86_64"].startswith("ami-")
    assert after["zone"] == first["zone"]
    assert aws.count()["GetParameter"] == 1
    assert "GetCallerIdentity" not in aws.count()


def test_another_path_of_a_resolved_image_changes_nothing(aws: Moto) -> None:
    assert not changes(resolve(ARGS), replace(ARGS, parameters={"plain-x86_64": "/aws/service/another"}))


def test_types_that_the_zone_lacks_are_an_error(aws: Moto) -> None:
    elsewhere = resolve(ARGS) | {"zone": f"{REGION}z"}
    with pytest.raises(
        ResourceError, match=f"{REGION}z, the zone of this cluster, does not offer g6.8xlarge, m7i.large, m7i.xlarge"
    ):
        resolve_again(elsewhere, replace(ARGS, instance_types=["g6.8xlarge", "m7i.large", "m7i.xlarge"]))


def test_a_missing_image_error_names_its_path(aws: Moto) -> None:
    with pytest.raises(
        ResourceError, match=r"aws.plain_ami: us-east-1 has no image under /aws/none \(ParameterNotFound\). Fix: "
    ):
        resolve(replace(ARGS, parameters={"plain-x86_64": "/aws/none"}))


def test_a_type_sold_nowhere_is_an_error(aws: Moto) -> None:
    with pytest.raises(
        ResourceError, match=r"no zone of us-east-1 offers all instance types \(.*p99.xlarge: no zone\)"
    ):
        resolve(replace(ARGS, instance_types=["m7i.large", "p99.xlarge"]))


def test_existing_subnets_and_filesystems_are_resolved(aws: Moto) -> None:
    ec2, efs = aws.client("ec2"), aws.client("efs")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    zone = f"{REGION}b"
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.9.1.0/24", AvailabilityZone=zone)["Subnet"]["SubnetId"]
    home = efs.create_file_system(CreationToken="home")["FileSystemId"]
    values = resolve(replace(ARGS, instance_types=[], vpc_id=vpc, subnet_ids=[subnet], filesystem_ids=[home]))
    assert (values["subnet_zones"], values["vpc_cidr"], values["zone"]) == ({subnet: zone}, "10.9.0.0/16", "")
    assert values["filesystems"] == {home: {"kind": "efs", "host": f"{home}.efs.{REGION}.amazonaws.com", "export": "/"}}


def test_two_subnets_in_one_zone_are_an_error(aws: Moto) -> None:
    """Otherwise EFS would reject the second mount target after half of the cluster was created."""
    ec2 = aws.client("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    first, second = (
        ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.9.{n}.0/24", AvailabilityZone=f"{REGION}b")["Subnet"]["SubnetId"]
        for n in (1, 2)
    )
    with pytest.raises(ResourceError, match=f"{first}, {second} are all in {REGION}b; allowed: one subnet per zone"):
        resolve(replace(ARGS, instance_types=[], vpc_id=vpc, subnet_ids=[first, second]))


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("subnet_ids", ["subnet-0123456789abcdef0"], r"network.subnet_ids: .*InvalidSubnetID.NotFound"),
        ("vpc_id", "vpc-0123456789abcdef0", r"network.vpc_id: .*InvalidVpcID.NotFound"),
    ],
)
def test_a_missing_network_is_an_error(aws: Moto, field: str, value: Any, text: str) -> None:
    with pytest.raises(ResourceError, match=text):
        resolve(replace(ARGS, instance_types=[], **{field: value}))


def test_an_fsx_filesystem_of_another_kind_is_an_error(aws: Moto) -> None:
    created = aws.client("fsx").create_file_system(
        FileSystemType="WINDOWS", StorageCapacity=300, SubnetIds=["subnet-0123456789abcdef0"]
    )
    id_ = created["FileSystem"]["FileSystemId"]
    with pytest.raises(ResourceError, match=f"{id_} is an FSx filesystem of type WINDOWS"):
        resolve(replace(ARGS, instance_types=[], filesystem_ids=[id_]))


def test_a_missing_filesystem_is_an_error(aws: Moto) -> None:
    with pytest.raises(ResourceError, match="neither an FSx nor an EFS filesystem fs-0123456789abcdef0"):
        resolve(replace(ARGS, instance_types=[], filesystem_ids=["fs-0123456789abcdef0"]))


def test_host_keys_are_generated_once_per_node() -> None:
    provider = HostKeysProvider()
    first = provider.create({"cluster": "c", "names": ["controller"]}).outs
    assert first["public"]["controller"].startswith("ssh-ed25519 ")
    assert not provider.diff("id", first, {"cluster": "c", "names": ["controller"]}).changes
    both = {"cluster": "c", "names": ["controller", "login", "gpu-1"]}
    assert provider.diff("id", first, both).changes
    after = provider.update("id", first, both).outs
    assert after["private"]["controller"] == first["private"]["controller"]
    assert len(set(after["private"].values())) == 3
