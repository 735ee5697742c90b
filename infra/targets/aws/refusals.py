"""Fixes for AWS errors that resources report with an error code, and without a command that continues."""

from __future__ import annotations

import re
from collections.abc import Mapping

from infra.targets.aws.launcher.error_codes import FIXES, classify_code
from slurm.power.launcher import FaultKind

_LOG_IN = "log in again (`aws sso login`), then run `{up}` to continue"
_NO_CAPACITY = (
    "that zone has no capacity now: run `{up}` again later to continue; a new cluster can name another "
    "zone first (aws.zones), or another instance_type for controller or login"
)
_NAME_TAKEN = "another resource in the account has that name: choose another `name`, or remove that resource"
_BY_CODE: Mapping[str, str] = {
    "InsufficientInstanceCapacity": _NO_CAPACITY,
    "InsufficientVolumeCapacity": _NO_CAPACITY,
    "ExpiredToken": _LOG_IN,
    "ExpiredTokenException": _LOG_IN,
    "RequestExpired": _LOG_IN,
    "EntityAlreadyExists": _NAME_TAKEN,
    "EntityAlreadyExistsException": _NAME_TAKEN,
    "BucketAlreadyOwnedByYou": _NAME_TAKEN,
    "BucketAlreadyExists": _NAME_TAKEN,
}
_BY_KIND: Mapping[FaultKind, str] = {
    "shortage": "AWS has no capacity for it now: run `{up}` again later to continue",
    "throttle": "wait a minute, then run `{up}` to continue",
    "quota": "request a higher quota under Service Quotas, then run `{up}` to continue",
    "permission": "grant the caller the permission it names (docs/aws.md lists all), then run `{up}` to continue",
    "gone": "run `{up}` to create it again",
    "broken": "resolve what AWS rejects, then run `{up}` to continue",
}
# Texts of errors that have no code, or whose code says less.
_BY_TEXT: Mapping[re.Pattern[str], str] = {
    re.compile("SSO session|SSO Token|Unable to locate credentials"): _LOG_IN,
    re.compile(r"not authorized to perform(?:: [\w-]+:\w+| this operation)"): _BY_KIND["permission"],
}
# Parts of codes that are not in the launcher's table, such as VpcLimitExceeded.
_FAMILIES: Mapping[str, FaultKind] = {
    "Throttl": "throttle",
    "TooManyRequests": "throttle",
    "LimitExceeded": "quota",
    "Unauthorized": "permission",
    "AccessDenied": "permission",
}
# An answer to HEAD has no code: boto3 reports its status, the SDK for Go the name of the status.
_STATUSES: Mapping[str, FaultKind] = {
    "403": "permission",
    "Forbidden": "permission",
    "500": "throttle",
    "503": "throttle",
}
_CODE = r"([A-Z]\w*(?:\.\w+)*)"
# The texts around an error code. A word before a colon alone is no code: it may be an exception, a file or a state.
_FORMS = (
    # boto3
    re.compile(r"An error occurred \(([\w.]+)\) when calling the \w+ operation"),
    # AWS's SDK for Go, which Pulumi's provider uses: errors that it has a type for follow the answer's ids.
    re.compile(rf"\bapi error {_CODE}:"),
    re.compile(rf"\bresponse error StatusCode: \d+, RequestID: [^\s,]*,(?: HostID: [^\s,]*,)? {_CODE}:"),
    # EC2's reason why a machine ended, which the provider repeats
    re.compile(rf"(?<![\w.])(?:Client|Server)\.{_CODE}:"),
    # Run Command (run_command.py)
    re.compile(r"Systems Manager does not reach it \(([\w.]+)\)"),
)
# An error of the launcher ends with the fix for its controller, and may have no code of AWS, as one without an answer.
_LAUNCHER = re.compile(
    rf"\b[a-z]+(?:_[a-z]+)+: {_CODE}(?:: [^\n]*)?; (?:"
    + "|".join(f"(?P<{kind}>{re.escape(fix)})" for kind, fix in FIXES.items())
    + ")"
)


def explain_refusal(message: str, up: str) -> str:
    """Return the fix for an error message; empty if it is no error of AWS or has its own fix.

    `up` is the command to type again.
    """
    if " Fix: " in message:
        return ""
    code, kind = _find_code(message)
    fix = _BY_CODE.get(code) or (_BY_KIND[kind] if kind and kind != "broken" else "")
    fix = fix or next((fix for text, fix in _BY_TEXT.items() if text.search(message)), "")
    return (fix or (_BY_KIND["broken"] if code else "")).format(up=up)


def _find_code(message: str) -> tuple[str, FaultKind | None]:
    """Return an error code of a message and its kind; an empty code if the message has none."""
    if launcher := _LAUNCHER.search(message):
        kind = next(kind for kind in FIXES if launcher.group(kind))
        return launcher.group(1), _classify(launcher.group(1)) if kind == "broken" else kind
    code = next((match.group(1) for form in _FORMS if (match := form.search(message))), "")
    return code, _classify(code) if code else None


def _classify(code: str) -> FaultKind:
    if code in _STATUSES:
        return _STATUSES[code]
    kind = classify_code(code)
    return next((family for part, family in _FAMILIES.items() if part in code), kind) if kind == "broken" else kind
