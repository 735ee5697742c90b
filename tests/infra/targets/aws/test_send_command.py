"""A script that is sent to a machine runs once, whatever happens to the answer of Systems Manager."""

from __future__ import annotations

import pytest
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ReadTimeoutError,
)

from infra.targets.aws import run_command, send_command
from infra.targets.aws.rehearse.moto_server import Fault
from infra.targets.aws.send_command import Script, may_have_arrived, send_script
from tests.moto_server import REGION, Moto

TRUE, FALSE = Script("true", 30), Script("false", 30)
SENT, LISTED = "SendCommand", "ListCommands"


@pytest.fixture
def instance(aws: Moto, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(send_command, "_FIRST_WAIT_S", 0.0)
    ec2 = aws.client("ec2")
    image = ec2.describe_images()["Images"][0]["ImageId"]
    launched = ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1)["Instances"][0]["InstanceId"]
    aws.calls.clear()
    return str(launched)


def list_calls(aws: Moto) -> list[str]:
    return [call.action for call in aws.calls if call.service == "ssm"]


@pytest.mark.parametrize("code", ["InternalServerError", "ServiceUnavailable"])
def test_a_command_whose_answer_was_lost_is_not_sent_again(aws: Moto, instance: str, code: str) -> None:
    aws.faults.append(Fault(SENT, code, after=True))
    assert run_command.run(REGION, instance, "true", 30).code == 0
    assert list_calls(aws) == [SENT, LISTED, "GetCommandInvocation"]


def test_a_command_that_did_not_arrive_is_sent_again(aws: Moto, instance: str) -> None:
    """A command of another sender on the same machine is not taken for it."""
    other = send_script(REGION, [instance], FALSE)
    aws.fail(SENT, "InternalServerError")
    assert send_script(REGION, [instance], TRUE) != other
    assert list_calls(aws) == [SENT, SENT, LISTED, SENT]


def test_a_throttled_command_is_sent_again_without_a_search(aws: Moto, instance: str) -> None:
    aws.fail(SENT, "ThrottlingException", times=2)
    send_script(REGION, [instance], TRUE)
    assert list_calls(aws) == [SENT, SENT, SENT]


def test_retries_end(aws: Moto, instance: str) -> None:
    aws.fail(SENT, "ThrottlingException", times=100)
    with pytest.raises(ClientError, match="ThrottlingException"):
        send_script(REGION, [instance], TRUE, retry_s=0)
    assert list_calls(aws) == [SENT]


def test_other_errors_are_not_retried(aws: Moto, instance: str) -> None:
    aws.fail(SENT, "AccessDeniedException")
    with pytest.raises(ClientError, match="AccessDenied"):
        send_script(REGION, [instance], TRUE)
    assert list_calls(aws) == [SENT]


@pytest.mark.parametrize(
    ("error", "arrived"),
    [
        (ConnectTimeoutError(endpoint_url="x"), False),
        (EndpointConnectionError(endpoint_url="x"), False),
        (ReadTimeoutError(endpoint_url="x"), True),
        (ClientError({"Error": {}, "ResponseMetadata": {"HTTPStatusCode": 400}}, SENT), False),
        (ClientError({"Error": {}, "ResponseMetadata": {"HTTPStatusCode": 503}}, SENT), True),
    ],
)
def test_which_errors_leave_it_open_whether_a_call_arrived(error: ClientError | BotoCoreError, arrived: bool) -> None:
    assert may_have_arrived(error) is arrived
