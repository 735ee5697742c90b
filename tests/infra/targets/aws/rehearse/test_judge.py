"""The judge: callers without credentials of the rehearsal may do nothing, and no call passes unjudged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import boto3
import pytest
from botocore.exceptions import ClientError

from infra.targets.aws.plan.iam import trust_job_hosts
from infra.targets.aws.rehearse.authorizations import Session, Template
from infra.targets.aws.rehearse.instances import Instances
from infra.targets.aws.rehearse.judge import make_judge
from infra.targets.aws.rehearse.moto_account import MotoAccount
from infra.targets.aws.rehearse.policies import Statement
from infra.targets.aws.rehearse.timeline import Timeline
from tests.moto_server import ACCOUNT, REGION, Moto, listening

OPERATOR, MACHINE = "ASIAOPERATOR", "ASIAMACHINE"
JOB, FOREIGN_JOB = "ASIAJOB", "ASIAFOREIGN"
SIGNED = "AWS4-HMAC-SHA256 Credential=testing/20261117/us-east-1/s3/aws4_request"
ROLE = "compute"


class Account:
    """An account whose only role has the given statements."""

    id, region = ACCOUNT, REGION
    boundary: list[Statement] | None = None
    of_resource: tuple[Statement, ...] = ()

    def __init__(self, *statements: Statement) -> None:
        self.statements = list(statements)

    def list_statements(self, role: str) -> list[Statement] | None:
        return self.statements if role == ROLE else None

    def list_boundary(self, _role: str) -> list[Statement] | None:
        return self.boundary

    def list_resource_statements(self, arn: str) -> list[Statement]:
        return [statement for statement in self.of_resource if arn.startswith("arn:aws:s3:")]

    def trusts(self, role_arn: str, _caller: str) -> bool:
        return role_arn == JOBS

    def find_session(self, access_key: str) -> Session | None:
        machines = {JOB: "i-1", FOREIGN_JOB: "i-9"}
        return Session(ROLE, machines[access_key]) if access_key in machines else None

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


def make(
    *statements: Statement,
    role: str = ROLE,
    boundary: list[Statement] | None = None,
    of_bucket: tuple[Statement, ...] = (),
) -> tuple[Any, list[str]]:
    machine = SimpleNamespace(id="i-1", name="gpu-1", role=role, raw=SimpleNamespace(vpc_id="vpc-1"))
    instances = SimpleNamespace(find_caller={MACHINE: machine}.get, by_id={"i-1": machine}, timeline=Timeline())
    denials: list[str] = []
    account = Account(*statements)
    account.boundary, account.of_resource = boundary, of_bucket
    return make_judge(account, cast(Instances, instances), OPERATOR, denials), denials


def test_the_operator_may_do_anything_and_a_machine_what_its_role_permits() -> None:
    judge, denials = make(ALLOW_S3)
    assert judge(OPERATOR, "ec2", "RunInstances", {}) == ""
    assert judge(MACHINE, "s3", "GET /bucket/x", {}) == ""
    assert denials == []
    assert (
        judge(MACHINE, "ec2", "DescribeInstances", {})
        == "compute may not ec2:DescribeInstances on *: no policy allows it"
    )
    assert denials == ["compute may not ec2:DescribeInstances on *: no policy allows it"]


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
        ({"Effect": "Allow", "Action": "*"}, "ec2", "DescribeInstances", {}),
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


def test_a_boundary_and_the_policy_of_a_bucket_count() -> None:
    judge, denials = make(ALLOW_S3, boundary=[{**ALLOW_S3, "Action": "ssm:*"}])
    bounded = "compute may not s3:GetObject on arn:aws:s3:::bucket/x: the permissions boundary does not allow it"
    assert judge(MACHINE, "s3", "GET /bucket/x", {}) == bounded
    tls_only = {**ALLOW_S3, "Effect": "Deny", "Principal": "*", "Condition": {"Bool": {"aws:SecureTransport": False}}}
    own_session = f"arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE}/i-1"
    for of_bucket, expected in (
        ((tls_only,), ""),
        (({**ALLOW_S3, "Effect": "Deny", "Principal": {"AWS": own_session}},), "the policy of the resource denies it"),
    ):
        judge, _ = make(ALLOW_S3, of_bucket=of_bucket)
        assert judge(MACHINE, "s3", "GET /bucket/x", {}).endswith(expected)
    assert denials == [bounded]


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


JOBS = f"arn:aws:iam::{ACCOUNT}:role/jobs"
ASSUME = {"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": JOBS}


def test_a_role_is_assumed_only_if_it_is_permitted_and_trusts_the_caller() -> None:
    judge, denials = make(ASSUME)
    assert judge(MACHINE, "sts", "AssumeRole", {"RoleArn": JOBS}) == ""
    other = f"arn:aws:iam::{ACCOUNT}:role/admin"
    assert (
        judge(MACHINE, "sts", "AssumeRole", {"RoleArn": other})
        == f"compute may not sts:AssumeRole on {other}: no policy allows it"
    )
    judge, _ = make({**ASSUME, "Resource": "*"})
    assert judge(MACHINE, "sts", "AssumeRole", {"RoleArn": other}) == f"{other} does not trust compute"
    assert denials == [f"compute may not sts:AssumeRole on {other}: no policy allows it"]


def test_a_program_of_a_user_may_do_what_the_role_of_jobs_permits_and_its_denials_are_no_failure() -> None:
    judge, denials = make({**ALLOW_S3, "Resource": "arn:aws:s3:::bucket/data"})
    assert judge(JOB, "s3", "GET /bucket/data", {}) == ""
    assert judge(JOB, "s3", "GET /bucket/x", {}) == (
        "compute may not s3:GetObject on arn:aws:s3:::bucket/x: no policy allows it"
    )
    assert "is not of this rehearsal" in judge(FOREIGN_JOB, "s3", "GET /bucket/data", {})
    assert denials == []
    reason = judge(JOB, "s3", "POST /bucket/x", {})
    assert reason.startswith("cannot judge s3 POST /bucket/x of compute: ")
    assert denials == [reason]


@pytest.mark.usefixtures("aws")
def test_moto_knows_trust_policies_and_session_of_an_assumed_role(aws: Moto) -> None:
    iam, account = aws.client("iam"), MotoAccount(ACCOUNT, REGION)
    iam.create_role(RoleName="compute", AssumeRolePolicyDocument=json.dumps({"Statement": []}))
    iam.create_role(RoleName="login", AssumeRolePolicyDocument=json.dumps({"Statement": []}))
    trust = trust_job_hosts([f"arn:aws:iam::{ACCOUNT}:role/compute"])
    iam.create_role(RoleName="jobs", AssumeRolePolicyDocument=json.dumps(trust))
    assert [account.trusts(JOBS, role) for role in ("compute", "login")] == [True, False]
    allowance = {**ALLOW_S3, "Resource": "arn:aws:s3:::bucket/data"}
    document = json.dumps({"Version": "2012-10-17", "Statement": [allowance]})
    policy = iam.create_policy(PolicyName="read", PolicyDocument=document)["Policy"]
    iam.attach_role_policy(RoleName="jobs", PolicyArn=policy["Arn"])
    assert account.list_statements("jobs") == [allowance]
    assert not account.trusts(f"arn:aws:iam::{ACCOUNT}:role/none", "compute")
    assumed = aws.client("sts").assume_role(RoleArn=JOBS, RoleSessionName="i-1")["Credentials"]
    assert account.find_session(assumed["AccessKeyId"]) == Session("jobs", "i-1")
    assert account.find_session("ASIAOTHER") is None


@pytest.mark.usefixtures("aws")
def test_moto_knows_boundaries_and_policies_of_buckets_and_keys(aws: Moto) -> None:
    iam, account = aws.client("iam"), MotoAccount(ACCOUNT, REGION)

    def document(*statements: Statement) -> str:
        return json.dumps({"Version": "2012-10-17", "Statement": statements})

    policy = iam.create_policy(PolicyName="limits", PolicyDocument=document(ALLOW_S3))["Policy"]["Arn"]
    iam.create_role(RoleName="free", AssumeRolePolicyDocument=document())
    iam.create_role(RoleName="bounded", AssumeRolePolicyDocument=document(), PermissionsBoundary=policy)
    assert (account.list_boundary("free"), account.list_boundary("bounded")) == (None, [ALLOW_S3])
    aws.client("s3").create_bucket(Bucket="data")
    assert account.list_resource_statements("arn:aws:s3:::data/x") == []
    denial = {**ALLOW_S3, "Effect": "Deny", "Principal": "*"}
    aws.client("s3").put_bucket_policy(Bucket="data", Policy=json.dumps({"Statement": denial}))
    for arn in ("arn:aws:s3:::data/folder/x", "arn:aws:s3:::data"):
        assert account.list_resource_statements(arn) == [denial]
    assert account.list_resource_statements("arn:aws:s3:::none/x") == []
    of_key = {"Effect": "Allow", "Action": "kms:*", "Resource": "*", "Principal": {"AWS": "*"}}
    key = aws.client("kms").create_key(Policy=document(of_key))["KeyMetadata"]["Arn"]
    assert account.list_resource_statements(key) == [of_key]
    assert account.list_resource_statements(f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/i-1") == []
    assert account.list_resource_statements("*") == []


@pytest.mark.parametrize("host", [f"data.s3.{REGION}.amazonaws.com", "data.s3.amazonaws.com"])
def test_a_bucket_in_the_host_is_part_of_the_call(host: str, aws: Moto) -> None:
    aws.client("s3").create_bucket(Bucket="data")
    headers = {"Host": host, "Authorization": SIGNED}
    request = Request(f"{aws.url}/key", headers=headers)  # noqa: S310  # our own server
    with pytest.raises(HTTPError):
        urlopen(request)  # noqa: S310  # our own server
    assert aws.calls[-1].action == "GET /data/key"
