"""The judge: callers without credentials of the rehearsal may do nothing, and no call passes unjudged."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import urlopen

import boto3
import pytest
from botocore.exceptions import ClientError

from infra.targets.aws.rehearse.authorizations import Template
from infra.targets.aws.rehearse.instances import Instances
from infra.targets.aws.rehearse.judge import make_judge
from infra.targets.aws.rehearse.policies import Statement
from infra.targets.aws.rehearse.timeline import Timeline
from tests.moto_server import ACCOUNT, REGION, Moto, aws, listening, moto  # noqa: F401  # fixtures

OPERATOR, MACHINE = "ASIAOPERATOR", "ASIAMACHINE"
ROLE = "compute"


class Account:
    """An account whose only role has the given statements."""

    id, region = ACCOUNT, REGION

    def __init__(self, *statements: Statement) -> None:
        self.statements = list(statements)

    def list_statements(self, role: str) -> list[Statement] | None:
        return self.statements if role == ROLE else None

    def describe_source(self, service: str, vpc: str) -> Mapping[str, str]:
        return {"aws:SourceVpc": vpc} if service == "ssm" else {}

    def tags(self, _resource_id: str) -> Mapping[str, str]:
        return {}

    def template(self, _id: str, _version: str) -> Template:
        return Template()

    def parameter_key(self, _name: str) -> str:
        return ""

    def bucket_key(self, _bucket: str) -> str:
        return ""


ALLOW_S3 = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}


def make(*statements: Statement, role: str = ROLE) -> tuple[Any, list[str]]:
    machine = SimpleNamespace(name="gpu-1", role=role, raw=SimpleNamespace(vpc_id="vpc-1"))
    instances = SimpleNamespace(find_caller={MACHINE: machine}.get, timeline=Timeline())
    denials: list[str] = []
    return make_judge(Account(*statements), cast(Instances, instances), OPERATOR, denials), denials


def test_the_operator_may_do_anything_and_a_machine_what_its_role_permits() -> None:
    judge, denials = make(ALLOW_S3)
    assert judge(OPERATOR, "ec2", "RunInstances", {}) == ""
    assert judge(MACHINE, "s3", "GET /bucket/x", {}) == ""
    assert denials == []
    assert judge(MACHINE, "ec2", "DescribeInstances", {}) == "compute may not ec2:DescribeInstances on *"
    assert denials == ["compute may not ec2:DescribeInstances on *"]


def test_a_call_comes_from_the_network_of_the_machine() -> None:
    denial = {
        "Effect": "Deny",
        "Action": "*",
        "Resource": "*",
        "Condition": {"StringNotEquals": {"aws:SourceVpc": "vpc-1"}},
    }
    judge, _ = make({"Effect": "Allow", "Action": "*", "Resource": "*"}, denial)
    assert judge(MACHINE, "ssm", "GetParameter", {"body": '{"Name": "/a"}'}) == ""
    assert "may not s3:GetObject" in judge(MACHINE, "s3", "GET /bucket/x", {})


@pytest.mark.parametrize("caller", ["", "testing", "AKIAEXAMPLE"])
def test_other_callers_may_do_nothing(caller: str) -> None:
    judge, _ = make(ALLOW_S3)
    assert "are not of this rehearsal" in judge(caller, "ssm", "SendCommand", {"body": "{}"})


@pytest.mark.parametrize(
    ("statement", "service", "action", "params"),
    [
        ({"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"}, "ec2", "DescribeInstances", {}),
        ({**ALLOW_S3, "Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}}, "s3", "GET /bucket/x", {}),
        (ALLOW_S3, "s3", "POST /bucket/x", {}),
        (ALLOW_S3, "s3", "GET /bucket", {}),
        (ALLOW_S3, "ssm", "GetParameter", {"body": "no JSON"}),
    ],
)
def test_a_call_that_cannot_be_judged_is_denied_and_reported(
    statement: Statement, service: str, action: str, params: dict[str, str]
) -> None:
    judge, denials = make(statement)
    reason = judge(MACHINE, service, action, params)
    assert reason.startswith(f"cannot judge {service} {action} of compute: ")
    assert denials == [reason]


def test_a_machine_that_outlives_its_role_is_denied() -> None:
    judge, denials = make(ALLOW_S3, role="removed")
    assert judge(MACHINE, "s3", "GET /bucket/key", {}) == "the role removed does not exist"
    assert denials == ["the role removed does not exist"]


@pytest.mark.usefixtures("aws")
def test_moto_denies_calls_without_the_rehearsals_credentials() -> None:
    server = Moto(access_key=OPERATOR, judge=make()[0])
    with listening(server) as url:
        server.url = url
        assert server.environment()["AWS_ACCESS_KEY_ID"] == OPERATOR
        assert server.client("ec2").describe_regions()["Regions"] != []
        other = boto3.client(
            "ec2", REGION, endpoint_url=url, aws_access_key_id="testing", aws_secret_access_key="testing"
        )
        with pytest.raises(ClientError, match="the credentials testing are not of this rehearsal"):
            other.describe_regions()
        with pytest.raises(HTTPError) as caught:
            urlopen(f"{url}/moto-api/data.json")  # noqa: S310  # our own server
        assert "the credentials (none) are not of this rehearsal" in caught.value.read().decode()
