"""Calls that reach moto as function calls get the same answers as those over HTTP."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from infra.targets.aws.rehearse import moto_calls
from infra.targets.aws.rehearse.direct_calls import call_directly
from infra.targets.aws.rehearse.errors.call_sites import name_site
from tests.moto_server import REGION, Moto, listening

BUCKET, KEY, BODY = "a-bucket", "folder/an object+with=signs", bytes(range(256))
Session = Mapping[str, Any]


@pytest.fixture
def aws() -> Iterator[Moto]:
    """Yield a server without state that is called over HTTP, unlike the one of other tests."""
    moto_calls.apply()
    server = Moto()
    server.reset()
    with listening(server) as server.url:
        yield server


def put_object(clients: Session) -> Any:
    clients["s3"].create_bucket(Bucket=BUCKET)
    # A file is sent in chunks over some connections, and as it is over others.
    return clients["s3"].put_object(Bucket=BUCKET, Key=KEY, Body=io.BytesIO(BODY), Metadata={"a": "b"})["ETag"]


def get_object(clients: Session) -> Any:
    put_object(clients)
    answer = clients["s3"].get_object(Bucket=BUCKET, Key=KEY)
    return answer["Body"].read(), answer["Metadata"], answer["ContentLength"]


def list_objects(clients: Session) -> Any:
    put_object(clients)
    return [entry["Key"] for entry in clients["s3"].list_objects_v2(Bucket=BUCKET, Prefix="folder/an ")["Contents"]]


def head_missing_object(clients: Session) -> Any:
    """An answer to HEAD has no body, so that only its status is known."""
    put_object(clients)
    with pytest.raises(ClientError) as error:
        clients["s3"].head_object(Bucket=BUCKET, Key="other")
    return error.value.response["Error"]


def launch_template(clients: Session) -> Any:
    clients["ec2"].create_launch_template(LaunchTemplateName="demo", LaunchTemplateData={"UserData": "Iw=="})
    return clients["ec2"].describe_launch_templates()["LaunchTemplates"][0]["LaunchTemplateName"]


def put_parameter(clients: Session) -> Any:
    clients["ssm"].put_parameter(Name="/a/b", Value="ä", Type="SecureString")
    return clients["ssm"].get_parameter(Name="/a/b", WithDecryption=True)["Parameter"]["Value"]


def create_zone(clients: Session) -> Any:
    zone = clients["route53"].create_hosted_zone(Name="demo.internal", CallerReference="1")["HostedZone"]
    return clients["route53"].get_hosted_zone(Id=zone["Id"])["HostedZone"]["Name"]


def describe_missing(clients: Session) -> Any:
    with pytest.raises(ClientError) as error:
        clients["ec2"].describe_vpcs(VpcIds=["vpc-0123456789abcdef0"])
    return error.value.response["Error"]


def name_calls(server: Moto) -> list[str]:
    return [name_site(call.service, call.action, call.params) for call in server.calls]


def create_clients(server: Moto) -> dict[str, Any]:
    session = boto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing", region_name=REGION)
    names = ("ec2", "route53", "s3", "ssm")
    return {name: session.client(name, endpoint_url=server.url) for name in names}


@pytest.mark.parametrize(
    "ask",
    [
        put_object,
        get_object,
        list_objects,
        head_missing_object,
        launch_template,
        put_parameter,
        create_zone,
        describe_missing,
    ],
)
def test_direct_calls_get_the_same_answers(aws: Moto, ask: Callable[[Session], Any]) -> None:
    over_http = ask(create_clients(aws))
    recorded = name_calls(aws)
    aws.reset()
    with call_directly(aws):
        assert ask(create_clients(aws)) == over_http
    assert name_calls(aws) == recorded


def test_direct_calls_need_no_connection_and_end_with_the_block() -> None:
    server = Moto()
    with listening(server) as server.url:
        pass
    with call_directly(server):
        assert create_clients(server)["ec2"].describe_vpcs()["Vpcs"]
    with pytest.raises(EndpointConnectionError):
        create_clients(server)["ec2"].describe_vpcs()


def test_direct_calls_meet_injected_errors_and_are_repeated(aws: Moto) -> None:
    aws.fail("DescribeVpcs", "RequestLimitExceeded")
    with call_directly(aws):
        assert create_clients(aws)["ec2"].describe_vpcs()["Vpcs"]
    assert [call.status for call in aws.of("DescribeVpcs")] == [503, 200]
