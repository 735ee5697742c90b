"""The kinds of the errors that boto3 raises."""

from __future__ import annotations

from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

from infra.targets.aws.launcher.error_codes import classify_code
from slurm.power.launcher import Fault

_NO_ANSWER = "NoAnswer"


def classify_error(error: ClientError | BotoCoreError) -> Fault:
    """Return the error with its kind."""
    if isinstance(error, ClientError):
        answer = error.response["Error"]
        return Fault(classify_code(answer["Code"]), answer["Code"], answer.get("Message", ""))
    if isinstance(error, (ConnectionError, HTTPClientError)):
        return Fault("throttle", _NO_ANSWER, str(error))
    # No credentials, no region, or a parameter that the API does not have.
    return Fault("broken", type(error).__name__, str(error))
