"""What to do about a refusal of AWS that Pulumi's own resources bring back: they name a code, not a way on. Pure."""

from __future__ import annotations

_WAYS_ON = {
    ("InsufficientInstanceCapacity", "InsufficientVolumeCapacity"): (
        "that zone has none of it now: `{up}` again later goes on from here; a new cluster may name another zone first "
        "(aws.zones), or another instance_type of controller or login"
    ),
    ("ExpiredToken", "RequestExpired", "SSO session"): "log in again (`aws sso login`), then `{up}` goes on from here",
    ("VcpuLimitExceeded", "LimitExceeded"): "ask for more under Service Quotas, then `{up}` goes on from here",
    ("UnauthorizedOperation", "AccessDenied", "not authorized to perform"): (
        "give whoever runs this the right that is named (docs/aws.md lists all), then `{up}` goes on from here"
    ),
    ("EntityAlreadyExists", "BucketAlreadyOwnedByYou", "BucketAlreadyExists"): (
        "something else in the account has that name: another `name`, or remove what has it"
    ),
    ("RequestLimitExceeded", "Throttling", "TooManyRequests"): "wait a minute, then `{up}` goes on from here",
}


def way_on(message: str, up: str) -> str:
    """`up`: what to type. Empty where nothing can be said, or the message says it itself."""
    if " Fix: " in message:
        return ""
    found = next((words for codes, words in _WAYS_ON.items() if any(code in message for code in codes)), "")
    return found.format(up=up)
