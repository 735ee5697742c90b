"""Fixes for AWS errors that Pulumi's own resources report with an error code only."""

from __future__ import annotations

_FIXES = {
    ("InsufficientInstanceCapacity", "InsufficientVolumeCapacity"): (
        "that zone has no capacity now: run `{up}` again later to continue; a new cluster can name another "
        "zone first (aws.zones), or another instance_type for controller or login"
    ),
    ("ExpiredToken", "RequestExpired", "SSO session"): ("log in again (`aws sso login`), then run `{up}` to continue"),
    ("VcpuLimitExceeded", "LimitExceeded"): (
        "request a higher quota under Service Quotas, then run `{up}` to continue"
    ),
    ("UnauthorizedOperation", "AccessDenied", "not authorized to perform"): (
        "grant the caller the permission it names (docs/aws.md lists all), then run `{up}` to continue"
    ),
    ("EntityAlreadyExists", "BucketAlreadyOwnedByYou", "BucketAlreadyExists"): (
        "another resource in the account has that name: choose another `name`, or remove that resource"
    ),
    ("RequestLimitExceeded", "Throttling", "TooManyRequests"): ("wait a minute, then run `{up}` to continue"),
}


def explain_refusal(message: str, up: str) -> str:
    """Return the fix for an error message; empty if none is known or the message has its own.

    `up` is the command to type again.
    """
    if " Fix: " in message:
        return ""
    fix = next((fix for codes, fix in _FIXES.items() if any(code in message for code in codes)), "")
    return fix.format(up=up)
