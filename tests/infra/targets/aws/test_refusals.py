"""Fixes for errors that resources report: every code of the table has one."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from botocore.exceptions import ClientError

from bootstrap.transport.base import TransportError
from infra.targets.aws import run_command
from infra.targets.aws.launcher.error_codes import CODES, FIXES, classify_code
from infra.targets.aws.refusals import explain_refusal
from slurm.power.launcher import Fault, LauncherError

UP = "make up STACK=demo"
EVERY_CODE = [*(code for codes in CODES.values() for code in codes), "NeverHeardOf"]
BOTO3 = "controller: An error occurred ({code}) when calling the RunInstances operation: no"
GO = "1 error occurred: operation error EC2: RunInstances, https response error StatusCode: 400, api error {code}: no"


@pytest.mark.parametrize("code", EVERY_CODE)
@pytest.mark.parametrize("form", [BOTO3, GO])
def test_every_code_has_a_fix_that_names_the_command(code: str, form: str) -> None:
    assert f"`{UP}`" in explain_refusal(form.format(code=code), UP)


@pytest.mark.parametrize("code", EVERY_CODE)
@pytest.mark.parametrize("message", ["no", ""])
def test_errors_of_the_launcher_have_a_fix_that_names_the_command(code: str, message: str) -> None:
    """Its own fix is for the controller, which goes on by itself."""
    kind = classify_code(code)
    error = LauncherError("change_resource_record_sets", Fault(kind, code, message), FIXES[kind])
    assert f"`{UP}`" in explain_refusal(f"{error}\npulumi.runtime.stack: nodes-gpu failed to register", UP)


@pytest.mark.parametrize("code", EVERY_CODE)
def test_errors_of_run_command_have_a_fix_that_names_the_command(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_command, "create_client", lambda *_: None)
    error = ClientError({"Error": {"Code": code, "Message": ""}}, "SendCommand")
    monkeypatch.setattr(run_command, "send_script", Mock(side_effect=error))
    with pytest.raises(TransportError) as caught:
        run_command.run("us-east-1", "i-0123456789abcdef0", "true", timeout_s=0.0)
    assert f"`{UP}`" in explain_refusal(str(caught.value), UP)


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        ("InsufficientInstanceCapacity", "that zone has no capacity now"),
        ("SpotMaxPriceTooLow", "AWS has no capacity for it now"),
        ("MaxSpotInstanceCountExceeded", "request a higher quota"),
        ("VpcLimitExceeded", "request a higher quota"),
        ("ExpiredToken", "log in again"),
        ("UnauthorizedOperation", "grant the caller the permission"),
        ("RequestLimitExceeded", "wait a minute"),
        ("InvalidSubnetID.NotFound", "resolve what AWS rejects"),
        ("EntityAlreadyExists", "another resource in the account has that name"),
    ],
)
def test_the_fix_fits_the_code(code: str, fix: str) -> None:
    assert explain_refusal(BOTO3.format(code=code), UP).startswith(fix)
    assert explain_refusal(GO.format(code=code), UP).startswith(fix)


# As Pulumi's AWS provider, the SDK for Go in it, and botocore write them.
REAL = {
    "1 error occurred:\n\t* creating IAM Role (demo-controller): operation error IAM: CreateRole, https response error "
    "StatusCode: 409, RequestID: b3b78412-dc8b-4bf2-b549-05389e48a643, EntityAlreadyExists: Role with name "
    "demo-controller already exists.": "another resource in the account has that name",
    "creating S3 Bucket (demo): operation error S3: CreateBucket, https response error StatusCode: 409, RequestID: "
    "7H2D, HostID: nQ+a/9==, BucketAlreadyOwnedByYou: ": "another resource in the account has that name",
    "creating EFS File System: operation error EFS: CreateFileSystem, https response error StatusCode: 403, RequestID: "
    "0e6c, FileSystemLimitExceeded: Maximum number of file systems reached": "request a higher quota",
    "creating EC2 VPC: operation error EC2: CreateVpc, https response error StatusCode: 400, RequestID: 1a2b, "
    "api error VpcLimitExceeded: The maximum number of VPCs has been reached.": "request a higher quota",
    "operation error S3: HeadBucket, https response error StatusCode: 403, RequestID: 5CQ, HostID: x, "
    "api error Forbidden: Forbidden": "grant the caller the permission",
    "operation error STS: GetCallerIdentity, https response error StatusCode: 403, RequestID: 9f, api error "
    "InvalidClientTokenId: The security token included in the request is invalid.": "grant the caller the permission",
    "waiting for EC2 Instance (i-0a1b2c) create: unexpected state 'terminated', wanted target 'running'. last error: "
    "Client.VolumeLimitExceeded: Volume limit exceeded": "request a higher quota",
    "waiting for EC2 Instance (i-0a1b2c) create: unexpected state 'shutting-down', wanted target 'running'. "
    "last error: Server.InsufficientInstanceCapacity: Insufficient capacity.": "that zone has no capacity now",
    "An error occurred (InvalidParameterException) when calling the CreateRole operation: User: arn:aws:iam::1:user/a "
    "is not authorized to perform: iam:PassRole on resource: r": "grant the caller the permission",
    "An error occurred (403) when calling the HeadObject operation: Forbidden": "grant the caller the permission",
    "An error occurred (Throttling) when calling the CreateRole operation (reached max retries: 4): Rate exceeded": (
        "wait a minute"
    ),
    "The SSO session associated with this profile has expired or is otherwise invalid.": "log in again",
    "run_instances: NoAnswer: Could not connect to the endpoint URL; retried after a wait": "wait a minute",
    "run_instances: NoCredentialsError: Unable to locate credentials; " + FIXES["broken"]: "log in again",
}


@pytest.mark.parametrize(("message", "fix"), REAL.items())
def test_real_messages_have_their_fix(message: str, fix: str) -> None:
    assert explain_refusal(message, UP).startswith(fix)


@pytest.mark.parametrize(
    "message",
    [
        "the controller did not report. Fix: look at its log.",
        "no space left on device",
        "slurm_cluster: ValueError: the inventory has no controller; it was removed",
        "load_spec: KeyError: 'groups'",
        "install_packages: Failed: apt-get ended with code 100",
        "resource plugin aws_v6: FileNotFoundError; see the log",
        "Command 'muster_check' failed: InsufficientInstanceCapacity.md not found",
        "dial tcp: net/http: request canceled (Client.Timeout exceeded while awaiting headers)",
        "rpc error: code = Unavailable desc = error reading from server: EOF",
        "error: an unhandled error occurred: ExpiredToken is not defined",
        "gate.py: the user is not authorized to perform administration",
        "operation error EC2: DescribeVpcs, https response error StatusCode: 0, RequestID: , request send failed, "
        'Get "https://ec2.us-east-1.amazonaws.com/": dial tcp: lookup ec2.us-east-1.amazonaws.com: no such host',
        "operation error SSM: GetParameter, https response error StatusCode: 200, RequestID: 1, deserialization "
        "failed, failed to decode response body, invalid character",
    ],
)
def test_other_messages_get_no_fix(message: str) -> None:
    assert explain_refusal(message, UP) == ""


def test_errors_of_the_launcher_without_a_code_of_aws_keep_their_own_fix() -> None:
    error = LauncherError(
        "hand_over", Fault("broken", "NoHostKey", "host-keys.json has no host key"), "run `muster up`"
    )
    assert explain_refusal(str(error), UP) == ""
