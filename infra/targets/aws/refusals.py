"""Fixes for AWS errors that resources report with an error code, and without a command that continues."""

from __future__ import annotations

import re
from collections.abc import Mapping

from infra.targets.aws.launcher.error_codes import classify_code
from slurm.power.launcher import FaultKind

_BY_TEXT = {
    ("InsufficientInstanceCapacity", "InsufficientVolumeCapacity"): (
        "that zone has no capacity now: run `{up}` again later to continue; a new cluster can name another "
        "zone first (aws.zones), or another instance_type for controller or login"
    ),
    ("ExpiredToken", "RequestExpired", "SSO session"): ("log in again (`aws sso login`), then run `{up}` to continue"),
    ("not authorized to perform",): (
        "grant the caller the permission it names (docs/aws.md lists all), then run `{up}` to continue"
    ),
    ("EntityAlreadyExists", "BucketAlreadyOwnedByYou", "BucketAlreadyExists"): (
        "another resource in the account has that name: choose another `name`, or remove that resource"
    ),
}
_BY_KIND: Mapping[FaultKind, str] = {
    "shortage": "AWS has no capacity for it now: run `{up}` again later to continue",
    "throttle": "wait a minute, then run `{up}` to continue",
    "quota": "request a higher quota under Service Quotas, then run `{up}` to continue",
    "permission": "grant the caller the permission it names (docs/aws.md lists all), then run `{up}` to continue",
    "gone": "run `{up}` to create it again",
    "broken": "resolve what AWS rejects, then run `{up}` to continue",
}
# Parts of codes that are not in the launcher's table, such as VpcLimitExceeded.
_FAMILIES: Mapping[str, FaultKind] = {
    "Throttl": "throttle",
    "TooManyRequests": "throttle",
    "LimitExceeded": "quota",
    "Unauthorized": "permission",
    "AccessDenied": "permission",
}
# As boto3, the AWS SDK for Go, which Pulumi's provider uses, our launcher and our Run Command write error codes.
_CODE = re.compile(
    r"An error occurred \(([\w.]+)\) when calling|\bapi error ([\w.]+)"
    r"|\b[a-z]+(?:_[a-z]+)+: ([A-Z][\w.]+)[:;]|Systems Manager does not reach it \(([\w.]+)\)"
)


def explain_refusal(message: str, up: str) -> str:
    """Return the fix for an error message; empty if it is no error of AWS or has its own fix.

    `up` is the command to type again.
    """
    if " Fix: " in message:
        return ""
    fix = next((fix for texts, fix in _BY_TEXT.items() if any(text in message for text in texts)), "")
    if not fix and (match := _CODE.search(message)):
        fix = _BY_KIND[_classify(next(filter(None, match.groups())))]
    return fix.format(up=up)


def _classify(code: str) -> FaultKind:
    kind = classify_code(code)
    return next((family for part, family in _FAMILIES.items() if part in code), kind) if kind == "broken" else kind
