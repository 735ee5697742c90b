"""Errors of AWS as services send them: each protocol has its own format, and throttling has several codes."""

from __future__ import annotations

import json
from html import escape
from http import HTTPStatus

from infra.targets.aws.launcher.error_codes import classify_code

Answer = tuple[str, list[tuple[str, str]], bytes]
"""Status line, headers and body of a response."""

SHORTAGE = "InsufficientInstanceCapacity"
_EC2, _S3 = "ec2", "s3"
# Services whose errors are XML, besides EC2 and S3; all others send JSON. Names are those in signatures.
_XML = frozenset({"iam", "sts", "route53", "sns", "monitoring", "cloudformation"})
# EC2 reports a capacity shortage as a server error, which SDKs retry automatically.
_STATUS = {
    SHORTAGE: 500,
    "RequestLimitExceeded": 503,
    "SlowDown": 503,
    "ServiceUnavailable": 503,
    "ServiceUnavailableException": 503,
    "Unavailable": 503,
    "InternalError": 500,
    "InternalFailure": 500,
    "InternalServerError": 500,
    "UnauthorizedOperation": 403,
    "AccessDenied": 403,
    "NotImplemented": 501,
}
_THROTTLES = {_EC2: "RequestLimitExceeded", _S3: "SlowDown"}
_DENIALS = {_EC2: "UnauthorizedOperation"}


def render_error(service: str, code: str, message: str = "injected") -> Answer:
    """Return the answer with an error, in the format of the service."""
    # An answer to HEAD has no body: S3 reports errors that pass as server errors, which callers recognize.
    passes = service == _S3 and classify_code(code) == "throttle"
    status = HTTPStatus(_STATUS.get(code, 503 if passes else 400))
    if service == _EC2:
        text = f"<Response><Errors>{_render_xml(code, message)}</Errors></Response>"
    elif service == _S3:
        text = _render_xml(code, message)
    elif service in _XML:
        text = f"<ErrorResponse>{_render_xml(code, message)}</ErrorResponse>"
    else:
        text = json.dumps({"__type": code, "message": message})
    kind = "application/x-amz-json-1.1" if text.startswith("{") else "text/xml"
    return f"{status.value} {status.phrase}", [("Content-Type", kind), ("x-amzn-errortype", code)], text.encode()


def throttle_code(service: str) -> str:
    """Return the code with which a service rejects a caller that sends too many requests."""
    return _THROTTLES.get(service, "Throttling" if service in _XML else "ThrottlingException")


def denial_code(service: str) -> str:
    """Return the code with which a service rejects a call that is not permitted."""
    return _DENIALS.get(service, "AccessDenied" if service == _S3 or service in _XML else "AccessDeniedException")


def _render_xml(code: str, message: str) -> str:
    return f"<Error><Code>{code}</Code><Message>{escape(message, quote=False)}</Message></Error>"
