"""All checks together: in parallel, in order, never for long, and no refusal or oddity ends them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import (
    BotoCoreError,
    EndpointConnectionError,
    SSOTokenLoadError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)

from cluster.spec.issue import Issue, warning
from infra.targets.aws.preflight import checks
from infra.targets.aws.preflight.account import Account
from infra.targets.aws.preflight.checks import Check, PreflightOptions, run_preflight
from infra.targets.aws.preflight.subject import Subject, list_running_instances
from tests.infra.targets.aws.preflight.conftest import Answered
from tests.infra.targets.aws.preflight.words import codes, words
from tests.infra.targets.aws.specs import spec
from tests.moto_server import ACCOUNT, REGION, Moto

REGION_OFF = "ap-east-1"


def one(name: str) -> Issue:
    return warning(name, "groups", "x", "y")


def test_all_are_asked_at_once_and_answer_in_order(answered: Answered) -> None:
    """Each waits for all the others: one after the other they would never end."""
    together = threading.Barrier(3, timeout=60)

    def run(name: str) -> Check:
        def found(_: Subject) -> Iterator[Issue]:
            together.wait()
            yield one(name)

        return Check(name, "groups", found)

    told: list[str] = []
    asking = PreflightOptions(deadline_s=60, checks=(run("first"), run("second"), run("third")), report=told.append)
    found = run_preflight(spec(), answered.account, asking)
    assert [issue.code for issue in found.issues] == ["first", "second", "third"]
    assert told[0] == "asking AWS in us-east-1: who am I"
    assert told[1] == "asking AWS in us-east-1: first, second, third"
    assert len(told[-1].split(", ")) == 1


def test_what_does_not_answer_is_not_waited_for(answered: Answered) -> None:
    never = threading.Event()

    def hangs(_: Subject) -> Iterator[Issue]:
        never.wait()
        yield one("late")

    asking = PreflightOptions(
        deadline_s=0.5, checks=(Check("quotas", "groups", hangs), Check("zones", "aws", lambda _: ()))
    )
    found = run_preflight(spec(), answered.account, asking)
    never.set()
    late = "warning not_judged groups: quotas could not be checked (no answer within 0 s); "
    assert late + "fix: run it again; check the network if this persists" in words(found.issues)


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        ("AccessDeniedException", "allow the caller to make this call, or check it yourself"),
        ("ThrottlingException", "run it again in a minute"),
        ("SomethingNew", "check it yourself; `make up` may fail on it"),
    ],
)
def test_a_refused_call_is_a_warning(answered: Answered, code: str, fix: str) -> None:
    secret = "Encoded authorization failure message: AbCdEf"
    answered.refuse("service-quotas", "GetServiceQuota", code, secret)
    (quotas,) = (check for check in checks.CHECKS if check.what == "vCPU quotas")
    found = run_preflight(spec(), answered.account, PreflightOptions(checks=(quotas,)))
    said = f"warning not_judged groups: vCPU quotas could not be checked (GetServiceQuota: {code}); fix: {fix}"
    assert words(found.issues) == [said]


def test_what_was_found_before_a_refusal_stays(answered: Answered) -> None:
    def breaks(_: Subject) -> Iterator[Issue]:
        yield one("found")
        raise EndpointConnectionError(endpoint_url="https://nowhere")

    found = run_preflight(spec(), answered.account, PreflightOptions(checks=(Check("x", "groups", breaks),)))
    assert codes(found.issues) == [("warning", "found"), ("warning", "not_judged")]


def test_an_answer_in_another_shape_is_no_crash(answered: Answered) -> None:
    def odd(_: Subject) -> Iterator[Issue]:
        yield {"a": one("a")}["b"]

    (said,) = words(
        run_preflight(spec(), answered.account, PreflightOptions(checks=(Check("x", "groups", odd),))).issues
    )
    assert "x could not be checked (unexpected response from AWS: KeyError('b'))" in said


def test_an_account_where_nothing_is_allowed(answered: Answered) -> None:
    """Every service says no: one warning for each check that asks, and nothing else."""
    for service in ("ec2", "service-quotas", "iam", "ssm", "fsx", "efs", "s3", "kms"):
        answered.session.events.register_first(f"before-call.{service}", _denied)
    found = run_preflight(spec(), answered.account, PreflightOptions())
    assert set(codes(found.issues)) == {("warning", "not_judged")}
    asks = {"name", "groups", "network", "aws.zones", "aws.ami", "aws"}
    assert {issue.where for issue in found.issues} == asks


def test_moto_answers_what_it_can(answered: Answered, aws: Moto) -> None:
    """The whole table against a server: nothing but reads, simulations and dry runs leave this machine."""
    found = run_preflight(
        spec(groups={"gpu": {"instance_type": "g6.8xlarge", "count": 2}}), answered.account, PreflightOptions()
    )
    assert found.identity is not None
    assert found.identity.account == ACCOUNT
    reading = ("Describe", "Get", "List", "Simulate", "HEAD ", "POST /get-resources")
    changing = [call for call in aws.calls if not call.action.startswith(reading)]
    assert {call.action for call in changing} <= {"RunInstances"}
    assert all(call.params.get("DryRun") == "true" for call in changing)


def test_machines_of_the_cluster_are_counted(aws: Moto) -> None:
    ec2 = aws.client("ec2")
    image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    for cluster in ("demo", "other"):
        tags = [{"ResourceType": "instance", "Tags": [{"Key": "muster.cluster", "Value": cluster}]}]
        ec2.run_instances(ImageId=image, InstanceType="m7i.large", MinCount=1, MaxCount=1, TagSpecifications=tags)
    (found,) = list_running_instances(ec2, "demo")
    assert (found.instance_type, found.spot, found.addresses, found.reservation) == ("m7i.large", False, 1, "")
    assert found.subnet.startswith("subnet-")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "ExpiredToken",
            "error credentials_expired aws.region: the credentials have expired (ExpiredToken); "
            "fix: log in again: `aws sso login`, or new keys",
        ),
        (
            "InvalidClientTokenId",
            "error credentials_refused aws.region: the credentials are not accepted (InvalidClientTokenId); "
            "fix: `aws sts get-caller-identity` must work; then run it again",
        ),
        (
            "Throttling",
            "warning aws_busy aws.region: AWS throttles requests (Throttling): the account was not checked; "
            "fix: run it again in a minute",
        ),
    ],
)
def test_no_identity_no_questions(answered: Answered, aws: Moto, code: str, said: str) -> None:
    answered.refuse("sts", "GetCallerIdentity", code)
    found = run_preflight(spec(), answered.account, PreflightOptions())
    assert (found.identity, words(found.issues)) == (None, [said])
    assert aws.calls == []


@pytest.mark.parametrize(
    "failure",
    [UnauthorizedSSOTokenError(), SSOTokenLoadError(error_msg="x"), TokenRetrievalError(provider="sso", error_msg="x")],
)
def test_a_session_that_ended_reads_as_expired(
    answered: Answered, monkeypatch: pytest.MonkeyPatch, failure: BotoCoreError
) -> None:
    """The library notices it before AWS is asked."""

    def refuse() -> None:
        raise failure

    monkeypatch.setattr(answered.account, "identity", refuse)
    assert words(run_preflight(spec(), answered.account, PreflightOptions()).issues) == [
        f"error credentials_expired aws.region: the credentials have expired ({type(failure).__name__}); "
        "fix: log in again: `aws sso login`, or new keys"
    ]


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port of this machine on which nothing listens."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    session = boto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing")
    (said,) = words(run_preflight(spec(), Account(session, REGION), PreflightOptions()).issues)
    assert said == (
        "warning aws_silent aws.region: AWS does not answer (EndpointConnectionError): the account was not checked; "
        "fix: check the network and the proxy, then run it again"
    )


def test_a_region_that_is_not_enabled(aws: Moto) -> None:
    """The same keys are good in a region that every account has."""
    off = Answered(REGION_OFF)
    off.session.events.register_first("before-call.sts.GetCallerIdentity", _only_at_home)
    found = run_preflight(spec(aws={"region": REGION_OFF}), off.account, PreflightOptions())
    assert words(found.issues) == [
        f"error region_not_enabled aws.region: the credentials are valid, but not in {REGION_OFF}: account {ACCOUNT} "
        "has "
        f"not enabled it; fix: `aws account enable-region --region-name {REGION_OFF}`, or another region"
    ]


def _denied(**_: Any) -> tuple[Any, dict[str, Any]]:
    return _response(403), {"Error": {"Code": "AccessDenied", "Message": "no"}, "ResponseMetadata": {}}


def _only_at_home(context: dict[str, Any], **_: Any) -> tuple[Any, dict[str, Any]]:
    if context["client_region"] == REGION_OFF:
        return _response(403), {"Error": {"Code": "InvalidClientTokenId", "Message": "no"}, "ResponseMetadata": {}}
    return _response(200), {"Account": ACCOUNT, "Arn": f"arn:aws:iam::{ACCOUNT}:user/ann", "ResponseMetadata": {}}


def _response(status: int) -> Any:
    return AWSResponse("", status, {}, None)
