"""A script as root on a machine without SSH: SSM Run Command, waited for."""

from __future__ import annotations

import time
from typing import Any

from botocore.exceptions import ClientError

from bootstrap.transport.base import Completed, TransportError
from infra.targets.aws.client import client

_POLL_S = 1.0
_DONE = ("Success", "Failed", "TimedOut", "Cancelled", "Undeliverable", "Terminated")
# A machine that has just started has not told Systems Manager yet.
_UNKNOWN = "InvalidInstanceId"
_NOT_YET = "InvocationDoesNotExist"
_ONLINE_S = 120.0


def run(region: str, instance: str, script: str, timeout_s: float) -> Completed:
    """Raises TransportError where no exit code came back in time."""
    ssm = client("ssm", region)
    deadline = time.monotonic() + timeout_s
    command = _send(ssm, instance, script, timeout_s, min(deadline, time.monotonic() + _ONLINE_S))
    while time.monotonic() < deadline:
        found = _look(ssm, command, instance)
        if found.get("Status") in _DONE:
            return Completed(found["ResponseCode"], found["StandardOutputContent"], found["StandardErrorContent"])
        time.sleep(_POLL_S)
    raise TransportError(instance, f"no answer within {timeout_s:.0f} s", "look at it with `muster ssh`")


def _send(ssm: Any, instance: str, script: str, timeout_s: float, deadline: float) -> str:
    while True:
        try:
            sent = ssm.send_command(
                InstanceIds=[instance],
                DocumentName="AWS-RunShellScript",
                Parameters={"commands": [script], "executionTimeout": [str(int(timeout_s))]},
            )
            return str(sent["Command"]["CommandId"])
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code != _UNKNOWN or time.monotonic() > deadline:
                raise TransportError(instance, f"Systems Manager does not reach it ({code})") from error
        time.sleep(_POLL_S)


def _look(ssm: Any, command: str, instance: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = ssm.get_command_invocation(CommandId=command, InstanceId=instance)
    except ClientError as error:
        if error.response["Error"]["Code"] != _NOT_YET:
            raise
        return {}
    return found
