"""A script as root on a machine without SSH: SSM Run Command, waited for."""

from __future__ import annotations

import time
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from bootstrap.transport.base import Completed, TransportError
from infra.targets.aws.client import client

_POLL_S = 1.0
_DONE = ("Success", "Failed", "TimedOut", "Cancelled", "Undeliverable", "Terminated")
# A machine that has just started has not told Systems Manager yet.
_UNKNOWN = "InvalidInstanceId"
_NOT_YET = "InvocationDoesNotExist"
_ONLINE_S = 120.0
# What is not begun by then never is: a drain or a test that was given up must not happen an hour later, which is how
# long Systems Manager keeps a command otherwise. It allows no less.
# https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_SendCommand.html
_LEAST_DELIVERY_S = 30
# Systems Manager hands back so many characters and drops the rest without a word in the status.
# https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_GetCommandInvocation.html
_LONGEST = 24_000


def run(region: str, instance: str, script: str, timeout_s: float) -> Completed:
    """Raises TransportError where no exit code came back in time."""
    try:
        return _waited_for(region, instance, script, timeout_s)
    except ClientError as refused:
        code = refused.response["Error"]["Code"]
        raise TransportError(instance, f"Systems Manager does not reach it ({code})") from refused
    except BotoCoreError as failure:
        raise TransportError(instance, f"Systems Manager does not answer ({failure})") from failure


def look_at(region: str, instance: str) -> str:
    """A shell that needs nothing of what a machine becomes: neither users nor keys nor a name."""
    return f"`aws ssm start-session --region {region} --target {instance}`"


def _waited_for(region: str, instance: str, script: str, timeout_s: float) -> Completed:
    ssm = client("ssm", region)
    deadline = time.monotonic() + timeout_s
    command = _send(ssm, instance, script, timeout_s, min(deadline, time.monotonic() + _ONLINE_S))
    while time.monotonic() < deadline:
        found = _look(ssm, command, instance)
        if found.get("Status") in _DONE:
            return _completed(instance, found)
        time.sleep(_POLL_S)
    raise TransportError(instance, f"no answer within {timeout_s:.0f} s", look_at(region, instance))


def _send(ssm: Any, instance: str, script: str, timeout_s: float, deadline: float) -> str:
    while True:
        try:
            sent = ssm.send_command(
                InstanceIds=[instance],
                DocumentName="AWS-RunShellScript",
                TimeoutSeconds=max(_LEAST_DELIVERY_S, int(timeout_s)),
                Parameters={"commands": [script], "executionTimeout": [str(int(timeout_s))]},
            )
            return str(sent["Command"]["CommandId"])
        except ClientError as error:
            if error.response["Error"]["Code"] != _UNKNOWN or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


def _completed(instance: str, found: dict[str, Any]) -> Completed:
    out = found["StandardOutputContent"]
    # Half an answer reads like a whole one: jobs at its end would not be seen.
    if len(out) >= _LONGEST:
        raise TransportError(instance, f"its answer is longer than the {_LONGEST} characters that come back")
    return Completed(found["ResponseCode"], out, found["StandardErrorContent"])


def _look(ssm: Any, command: str, instance: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = ssm.get_command_invocation(CommandId=command, InstanceId=instance)
    except ClientError as error:
        if error.response["Error"]["Code"] != _NOT_YET:
            raise
        return {}
    return found
