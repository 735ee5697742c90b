"""A script as root on a machine without SSH: SSM Run Command, waited for."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from botocore.exceptions import ClientError

from infra.providers.problem import Problem
from infra.targets.aws.client import client

_POLL_S = 1.0
_DONE = ("Success", "Failed", "TimedOut", "Cancelled", "Undeliverable", "Terminated")
# A machine that has just started has not told Systems Manager yet.
_UNKNOWN = "InvalidInstanceId"
_NOT_YET = "InvocationDoesNotExist"
_ONLINE_S = 120.0


@dataclass(frozen=True)
class Answer:
    code: int
    out: str


def run(region: str, instance: str, script: str, timeout_s: float) -> Answer:
    ssm = client("ssm", region)
    deadline = time.monotonic() + timeout_s
    command = _send(ssm, instance, script, timeout_s, min(deadline, time.monotonic() + _ONLINE_S))
    while time.monotonic() < deadline:
        found = _look(ssm, command, instance)
        if found.get("Status") in _DONE:
            return Answer(found["ResponseCode"], found["StandardOutputContent"])
        time.sleep(_POLL_S)
    raise Problem(
        "", f"{instance} did not answer within {timeout_s:.0f} s", "look at it: `muster ssh`, then `muster up`"
    )


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
            if error.response["Error"]["Code"] != _UNKNOWN or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


def _look(ssm: Any, command: str, instance: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = ssm.get_command_invocation(CommandId=command, InstanceId=instance)
    except ClientError as error:
        if error.response["Error"]["Code"] != _NOT_YET:
            raise
        return {}
    return found
