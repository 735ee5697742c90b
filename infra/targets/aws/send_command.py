"""Sending a script to machines through Systems Manager, once: SendCommand has no client token, so SDKs would repeat it.

A command whose answer was lost is looked up by its comment before it is sent again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ProxyConnectionError,
)

from infra.targets.aws.client import create_client
from infra.targets.aws.launcher.errors import classify_error
from infra.targets.aws.launcher.retries import note_retry

RETRY_S = 60.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 10.0
_NOT_SENT = (ConnectTimeoutError, EndpointConnectionError, ProxyConnectionError)
# More than the clock of this machine may be ahead of AWS's.
_CLOCK_MARGIN = timedelta(hours=1)
_DOCUMENT = "AWS-RunShellScript"
_SERVER_ERROR = 500


@dataclass(frozen=True)
class Script:
    """A script, and how long it may take."""

    text: str
    timeout_s: float
    """Limit of its run."""
    delivery_s: int | None = None
    """Limit of the time until a machine starts it; if None, that of Systems Manager."""


def send_script(region: str, instances: Sequence[str], script: Script, retry_s: float = RETRY_S) -> str:
    """Send a script and return the id of the command; raise ClientError or BotoCoreError."""
    sender, comment = create_client("ssm", region, attempts=1), f"muster {uuid4()}"
    delivery = {} if script.delivery_s is None else {"TimeoutSeconds": script.delivery_s}
    deadline, wait_s = time.monotonic() + retry_s, _FIRST_WAIT_S
    while True:
        try:
            response = sender.send_command(
                InstanceIds=list(instances),
                DocumentName=_DOCUMENT,
                Comment=comment,
                Parameters={"commands": [script.text], "executionTimeout": [str(int(script.timeout_s))]},
                **delivery,
            )
            return str(response["Command"]["CommandId"])
        except (ClientError, BotoCoreError) as error:
            fault = classify_error(error)
            if fault.kind != "throttle" or time.monotonic() + wait_s > deadline:
                raise
            is_unclear = may_have_arrived(error)
        note_retry(fault.code, wait_s)
        time.sleep(wait_s)
        if is_unclear and (command := _find_command(region, instances[0], comment)):
            return command
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def may_have_arrived(error: ClientError | BotoCoreError) -> bool:
    """Return whether AWS may have executed a call that failed with this error."""
    if isinstance(error, ClientError):
        return int(error.response["ResponseMetadata"]["HTTPStatusCode"]) >= _SERVER_ERROR
    return not isinstance(error, _NOT_SENT)


def _find_command(region: str, instance: str, comment: str) -> str | None:
    """Return the id of the command with this comment, which is unique; None if Systems Manager has none."""
    since = datetime.now(UTC) - _CLOCK_MARGIN
    filters = [{"key": "InvokedAfter", "value": since.strftime("%Y-%m-%dT%H:%M:%SZ")}]
    pages = create_client("ssm", region).get_paginator("list_commands").paginate(InstanceId=instance, Filters=filters)
    listed: list[dict[str, Any]] = [command for page in pages for command in page["Commands"]]
    return next((str(command["CommandId"]) for command in listed if command.get("Comment") == comment), None)
