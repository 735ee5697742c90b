"""All pre-flight checks together: they run in parallel, report in order, time out, and survive failed calls."""

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
from tests.infra.targets.aws.preflight.conftest import CannedAws
from tests.infra.targets.aws.preflight.issue_text import format_issues, issue_codes
from tests.infra.targets.aws.specs import spec
from tests.moto_server import ACCOUNT, REGION, Moto

REGION_OFF = "ap-east-1"


def make_warning(name: str) -> Issue:
    return warning(name, "groups", "x", "y")


def test_checks_run_in_parallel_and_report_in_order(canned_aws: CannedAws) -> None:
    """Each check waits for the other two, so running them in sequence would never finish."""
    together = threading.Barrier(3, timeout=60)

    def run(name: str) -> Check:
        def find_issues(_: Subject) -> Iterator[Issue]:
            together.wait()
            yield make_warning(name)

        return Check(name, "groups", find_issues)

    progress: list[str] = []
    options = PreflightOptions(
        deadline_s=60, checks=(run("first"), run("second"), run("third")), report=progress.append
    )
    report = run_preflight(spec(), canned_aws.account, options)
    assert [issue.code for issue in report.issues] == ["first", "second", "third"]
    assert progress[0] == "asking AWS in us-east-1: who am I"
    assert progress[1] == "asking AWS in us-east-1: first, second, third"
    assert len(progress[-1].split(", ")) == 1


def test_a_check_without_an_answer_times_out(canned_aws: CannedAws) -> None:
    never = threading.Event()

    def hangs(_: Subject) -> Iterator[Issue]:
        never.wait()
        yield make_warning("late")

    options = PreflightOptions(
        deadline_s=0.5, checks=(Check("quotas", "groups", hangs), Check("zones", "aws", lambda _: ()))
    )
    report = run_preflight(spec(), canned_aws.account, options)
    never.set()
    late = "warning not_judged groups: quotas could not be checked (no answer within 0 s); "
    assert late + "fix: run it again; check the network if this persists" in format_issues(report.issues)


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        ("AccessDeniedException", "allow the caller to make this call, or check it yourself"),
        ("ThrottlingException", "run it again in a minute"),
        ("NotImplemented", "not simulated; it is checked in an account"),
        ("SomethingNew", "check it yourself; `make up` may fail on it"),
    ],
)
def test_a_refused_call_is_a_warning(canned_aws: CannedAws, code: str, fix: str) -> None:
    secret = "Encoded authorization failure message: AbCdEf"
    canned_aws.refuse("service-quotas", "GetServiceQuota", code, secret)
    (quotas,) = (check for check in checks.CHECKS if check.what == "vCPU quotas")
    report = run_preflight(spec(), canned_aws.account, PreflightOptions(checks=(quotas,)))
    message = f"warning not_judged groups: vCPU quotas could not be checked (GetServiceQuota: {code}); fix: {fix}"
    assert format_issues(report.issues) == [message]


def test_machines_that_cannot_be_listed_are_a_warning(canned_aws: CannedAws) -> None:
    """Otherwise a cluster that uses most of a quota would fail its check without a reason."""
    canned_aws.refuse("ec2", "DescribeInstances", "UnauthorizedOperation")
    report = run_preflight(spec(), canned_aws.account, PreflightOptions(checks=()))
    assert format_issues(report.issues) == [
        "warning not_judged groups: what the cluster already uses could not be checked (DescribeInstances: "
        "UnauthorizedOperation); fix: allow the caller to make this call, or check it yourself"
    ]


def test_issues_reported_before_a_failure_are_kept(canned_aws: CannedAws) -> None:
    def breaks(_: Subject) -> Iterator[Issue]:
        yield make_warning("found")
        raise EndpointConnectionError(endpoint_url="https://nowhere")

    report = run_preflight(spec(), canned_aws.account, PreflightOptions(checks=(Check("x", "groups", breaks),)))
    assert issue_codes(report.issues) == [("warning", "found"), ("warning", "not_judged")]


def test_an_unexpected_response_is_a_warning(canned_aws: CannedAws) -> None:
    def odd(_: Subject) -> Iterator[Issue]:
        yield {"a": make_warning("a")}["b"]

    (message,) = format_issues(
        run_preflight(spec(), canned_aws.account, PreflightOptions(checks=(Check("x", "groups", odd),))).issues
    )
    assert "x could not be checked (unexpected response from AWS: KeyError('b'))" in message


@pytest.mark.fault(38)
def test_without_any_permission_every_check_is_a_warning(canned_aws: CannedAws) -> None:
    """Every service denies access: each check that calls one gives a warning, and nothing else is reported."""
    for service in ("ec2", "service-quotas", "iam", "ssm", "fsx", "efs", "s3", "kms"):
        canned_aws.session.events.register_first(f"before-call.{service}", _deny)
    report = run_preflight(spec(), canned_aws.account, PreflightOptions())
    assert set(issue_codes(report.issues)) == {("warning", "not_judged")}
    locations = {"name", "groups", "network", "aws.zones", "aws.ami", "aws"}
    assert {issue.where for issue in report.issues} == locations


def test_preflight_only_reads_simulates_and_dry_runs(canned_aws: CannedAws, aws: Moto) -> None:
    """All checks run against moto's server."""
    report = run_preflight(
        spec(groups={"gpu": {"instance_type": "g6.8xlarge", "count": 2}}), canned_aws.account, PreflightOptions()
    )
    assert report.identity is not None
    assert report.identity.account == ACCOUNT
    reading = ("Describe", "Get", "List", "Simulate", "HEAD ", "POST /get-resources")
    changing = [call for call in aws.calls if not call.action.startswith(reading)]
    assert {call.action for call in changing} <= {"RunInstances"}
    assert all(call.params.get("DryRun") == "true" for call in changing)


def test_only_instances_of_the_cluster_are_listed(aws: Moto) -> None:
    ec2 = aws.client("ec2")
    image = ec2.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    for cluster in ("demo", "other"):
        tags = [{"ResourceType": "instance", "Tags": [{"Key": "muster.cluster", "Value": cluster}]}]
        ec2.run_instances(ImageId=image, InstanceType="m7i.large", MinCount=1, MaxCount=1, TagSpecifications=tags)
    (running,) = list_running_instances(ec2, "demo")
    assert (running.instance_type, running.spot, running.addresses, running.reservation) == ("m7i.large", False, 1, "")
    assert running.subnet.startswith("subnet-")
    assert running.zone.startswith("us-east-1")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "ExpiredToken",
            "error credentials_expired aws.region: the credentials have expired (ExpiredToken); "
            "fix: log in again (`aws sso login`, or new keys), then run `make check` again",
        ),
        (
            "InvalidClientTokenId",
            "error credentials_refused aws.region: the credentials are not accepted (InvalidClientTokenId); "
            "fix: `aws sts get-caller-identity` must work; then run `make check` again",
        ),
        (
            "Throttling",
            "warning aws_busy aws.region: AWS throttles requests (Throttling): the account was not checked; "
            "fix: run it again in a minute",
        ),
    ],
)
def test_without_an_identity_no_other_call_is_made(canned_aws: CannedAws, aws: Moto, code: str, message: str) -> None:
    canned_aws.refuse("sts", "GetCallerIdentity", code)
    report = run_preflight(spec(), canned_aws.account, PreflightOptions())
    assert (report.identity, format_issues(report.issues)) == (None, [message])
    assert aws.calls == []


@pytest.mark.parametrize(
    "failure",
    [UnauthorizedSSOTokenError(), SSOTokenLoadError(error_msg="x"), TokenRetrievalError(provider="sso", error_msg="x")],
)
def test_an_ended_session_is_reported_as_expired(
    canned_aws: CannedAws, monkeypatch: pytest.MonkeyPatch, failure: BotoCoreError
) -> None:
    """The library raises these errors before it calls AWS."""

    def refuse() -> None:
        raise failure

    monkeypatch.setattr(canned_aws.account, "identity", refuse)
    assert format_issues(run_preflight(spec(), canned_aws.account, PreflightOptions()).issues) == [
        f"error credentials_expired aws.region: the credentials have expired ({type(failure).__name__}); "
        "fix: log in again (`aws sso login`, or new keys), then run `make check` again"
    ]


def test_an_unreachable_endpoint_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens on this port."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    session = boto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing")
    (message,) = format_issues(run_preflight(spec(), Account(session, REGION), PreflightOptions()).issues)
    assert message == (
        "warning aws_silent aws.region: AWS does not answer (EndpointConnectionError): the account was not checked; "
        "fix: check the network and the proxy, then run it again"
    )


def test_a_region_that_is_not_enabled_is_an_error(aws: Moto) -> None:
    """The same keys are valid in a region that every account has enabled."""
    disabled_region = CannedAws(REGION_OFF)
    disabled_region.session.events.register_first("before-call.sts.GetCallerIdentity", _deny_outside_default_region)
    report = run_preflight(spec(aws={"region": REGION_OFF}), disabled_region.account, PreflightOptions())
    assert format_issues(report.issues) == [
        f"error region_not_enabled aws.region: the credentials are valid, but not in {REGION_OFF}: account {ACCOUNT} "
        "has "
        f"not enabled it; fix: `aws account enable-region --region-name {REGION_OFF}`, or another region"
    ]


def _deny(**_: Any) -> tuple[Any, dict[str, Any]]:
    return _response(403), {"Error": {"Code": "AccessDenied", "Message": "no"}, "ResponseMetadata": {}}


def _deny_outside_default_region(context: dict[str, Any], **_: Any) -> tuple[Any, dict[str, Any]]:
    if context["client_region"] == REGION_OFF:
        return _response(403), {"Error": {"Code": "InvalidClientTokenId", "Message": "no"}, "ResponseMetadata": {}}
    return _response(200), {"Account": ACCOUNT, "Arn": f"arn:aws:iam::{ACCOUNT}:user/ann", "ResponseMetadata": {}}


def _response(status: int) -> Any:
    return AWSResponse("", status, {}, None)
