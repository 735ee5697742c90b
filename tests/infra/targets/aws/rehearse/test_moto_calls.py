"""Calls that muster adds to moto: how moto finds them, and calls that neither has."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.core.utils import method_names_from_class
from moto.ec2.models import ec2_backends
from moto.ec2.responses import EC2Response

from infra.targets.aws.rehearse.moto_calls import MethodNames
from tests.moto_server import ACCOUNT, REGION, Moto


def test_method_names_are_those_that_moto_lists(moto: Moto) -> None:
    names = MethodNames(EC2Response)
    listed = set(method_names_from_class(EC2Response))
    assert {name for name in dir(EC2Response) if name in names} == listed
    assert "describe_placement_groups" in names
    assert "describe_nothing" not in names


def test_a_method_that_is_added_later_is_a_method() -> None:
    class Response:
        added: Any

    names = MethodNames(Response)
    assert "added" not in names
    Response.added = lambda _self: None
    assert "added" in names


def test_tags_of_a_resource_are_those_that_moto_finds_among_all(aws: Moto) -> None:
    ec2 = aws.client("ec2")
    first, second = (ec2.create_vpc(CidrBlock=f"10.{number}.0.0/16")["Vpc"]["VpcId"] for number in (1, 2))
    for vpc, tags in ((first, {"team": "a", "*": "b"}), (second, {"team": "b"})):
        ec2.create_tags(Resources=[vpc], Tags=[{"Key": key, "Value": value} for key, value in tags.items()])
    backend = ec2_backends[ACCOUNT][REGION]
    for id_ in (first, second, ec2.describe_subnets()["Subnets"][0]["SubnetId"]):
        stored = backend.vpcs.get(id_) or backend.get_subnet(id_)
        assert stored.get_tags() == backend.describe_tags({"resource-id": [id_]})
    listed = ec2.describe_vpcs(Filters=[{"Name": "tag:team", "Values": ["b"]}])["Vpcs"]
    assert [vpc["VpcId"] for vpc in listed] == [second]


def test_a_call_that_moto_lacks_is_refused(aws: Moto) -> None:
    with pytest.raises(ClientError, match="describe_trunk_interface_associations"):
        aws.client("ec2").describe_trunk_interface_associations()


def test_a_service_that_moto_lacks_is_refused_quietly(aws: Moto, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ClientError, match=r"NotImplemented.*pricing\.us-east-1\.amazonaws\.com"):
        aws.client("pricing").get_products(ServiceCode="AmazonEC2")
    assert capfd.readouterr() == ("", "")


def test_clients_of_a_service_have_the_same_calls_and_classes_of_their_own(aws: Moto) -> None:
    first, second = aws.client("ec2"), aws.client("ec2", "us-west-2")
    assert type(first) is not type(second)
    assert type(first).describe_vpcs is type(second).describe_vpcs
    assert (first.meta.region_name, second.meta.region_name) == ("us-east-1", "us-west-2")
