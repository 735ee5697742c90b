"""Calls that muster adds to moto: how moto finds them, and calls that neither has."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.core.utils import method_names_from_class
from moto.ec2.responses import EC2Response

from infra.targets.aws.rehearse.moto_calls import MethodNames
from tests.moto_server import Moto, aws, moto  # noqa: F401  # fixtures


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
