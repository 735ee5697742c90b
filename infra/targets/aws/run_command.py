"""SSM Run Command: runs a script as root on a machine without SSH and waits for the result."""

from __future__ import annotations

import time
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from bootstrap.transport.base import Completed, TransportError
from infra.targets.aws.client import create_client
from infra.targets.aws.send_command import RETRY_S, Script, send_script

_POLL_S = 1.0
_FINAL_STATES = ("Success", "Failed", "TimedOut", "Cancelled", "Undeliverable", "Terminated")
# A machine that has just started has not registered with Systems Manager yet.
_NOT_REGISTERED = "InvalidInstanceId"
_NOT_DELIVERED = "InvocationDoesNotExist"
_REGISTRATION_TIMEOUT_S = 120.0
# Systems Manager otherwise keeps a command for an hour: a drain or test that timed out here must not start later.
# It allows no shorter delivery timeout than this.
# https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_SendCommand.html
_SHORTEST_DELIVERY_S = 30
# Systems Manager returns this many characters of output and drops the remainder silently.
# https://docs.aws.amazon.com/systems-manager/latest/APIReference/API_GetCommandInvocation.html
_MAX_OUTPUT_CHARACTERS = 24_000


def run(region: str, instance: str, script: str, timeout_s: float) -> Completed:
    """Run a script and return its result; raise TransportError if no exit code arrives in time."""
    try:
        return _run_and_wait(region, instance, script, timeout_s)
    except ClientError as error:
        code = error.response["Error"]["Code"]
        raise TransportError(instance, f"Systems Manager does not reach it ({code})") from error
    except BotoCoreError as error:
        raise TransportError(instance, f"Systems Manager does not answer ({error})") from error


def render_session_command(region: str, instance: str) -> str:
    """Return the command that opens a shell, which works even before the machine has users, keys or a name."""
    return f"`aws ssm start-session --region {region} --target {instance}`"


def _run_and_wait(region: str, instance: str, script: str, timeout_s: float) -> Completed:
    ssm = create_client("ssm", region)
    deadline = time.monotonic() + timeout_s
    command = _send(region, instance, script, timeout_s, min(deadline, time.monotonic() + _REGISTRATION_TIMEOUT_S))
    while time.monotonic() < deadline:
        invocation = _get_invocation(ssm, command, instance)
        if invocation.get("Status") in _FINAL_STATES:
            return _to_completed(instance, invocation)
        time.sleep(_POLL_S)
    raise TransportError(instance, f"no answer within {timeout_s:.0f} s", render_session_command(region, instance))


def _send(region: str, instance: str, script: str, timeout_s: float, deadline: float) -> str:
    """Send a script as soon as the machine has registered, and return the id of the command."""
    timed = Script(script, timeout_s, delivery_s=max(_SHORTEST_DELIVERY_S, int(timeout_s)))
    while True:
        try:
            return send_script(region, [instance], timed, min(RETRY_S, deadline - time.monotonic()))
        except ClientError as error:
            if error.response["Error"]["Code"] != _NOT_REGISTERED or time.monotonic() > deadline:
                raise
        time.sleep(_POLL_S)


def _to_completed(instance: str, invocation: dict[str, Any]) -> Completed:
    output = invocation["StandardOutputContent"]
    # Truncated output looks complete: jobs at its end would be missed.
    if len(output) >= _MAX_OUTPUT_CHARACTERS:
        message = f"its output is longer than the {_MAX_OUTPUT_CHARACTERS} characters that Systems Manager returns"
        raise TransportError(instance, message)
    return Completed(invocation["ResponseCode"], output, invocation["StandardErrorContent"])


def _get_invocation(ssm: Any, command: str, instance: str) -> dict[str, Any]:
    try:
        invocation: dict[str, Any] = ssm.get_command_invocation(CommandId=command, InstanceId=instance)
    except ClientError as error:
        if error.response["Error"]["Code"] != _NOT_DELIVERED:
            raise
        return {}
    return invocation
