"""Errors of Nebius's API in words: the property, what was refused, and the fix."""

from __future__ import annotations

from collections.abc import Iterator

from grpc import StatusCode
from nebius.aio.service_error import RequestError

from infra.resources.error import InUseError, ResourceError
from infra.targets.nebius.spec import LOGIN_FIX

# What others use (a precondition), or what another operation still works on, can be removed later.
_IN_USE = frozenset({StatusCode.FAILED_PRECONDITION, StatusCode.ABORTED})
# Without a request id, no server has seen the call.
_NO_ANSWER = frozenset({StatusCode.UNAVAILABLE, StatusCode.DEADLINE_EXCEEDED})
QUOTA_FIX = "request a higher quota in Nebius's console (Administration, Limits), or make the cluster smaller"
CONNECTION_FIX = "check the connection to api.nebius.cloud, then run it again"
CAPACITY_FIX = "try again later, or choose another fabric, preset or project (region); muster keeps what exists"


def is_code(error: RequestError, *codes: StatusCode) -> bool:
    """Return whether the API has answered with one of these codes."""
    return error.status.code in codes


def explain_error(where: str, error: RequestError) -> ResourceError:
    """Return the error that a user sees."""
    status = error.status
    what = "; ".join(_describe_details(error)) or str(status.message or status.code.name)
    if status.code in _NO_ANSWER and not status.request_id:
        what = f"api.nebius.cloud does not answer ({what})"
    if status.request_id:
        what = f"{what} (request {status.request_id})"
    kind = InUseError if status.code in _IN_USE else ResourceError
    return kind(where, what, _choose_fix(error))


def _describe_details(error: RequestError) -> Iterator[str]:
    for service_error in error.status.service_errors:
        detail = service_error.which_field_in_oneof("details")
        if detail == "quota_failure":
            for violation in service_error.quota_failure.violations:
                needs = f"limit {violation.limit}, requested {violation.requested}"
                yield f"the quota {violation.quota} is too low: {needs}"
        elif detail == "not_enough_resources":
            for lack in service_error.not_enough_resources.violations:
                yield f"Nebius has no capacity for {lack.resource_type} now (requested {lack.requested})"
        elif detail == "bad_request":
            for bad in service_error.bad_request.violations:
                yield f"{bad.field}: {bad.message}"
        elif detail == "permission_denied":
            yield f"the account may not use resource {service_error.permission_denied.resource_id}"


def _choose_fix(error: RequestError) -> str:
    details = {entry.which_field_in_oneof("details") for entry in error.status.service_errors}
    if "not_enough_resources" in details:
        return CAPACITY_FIX
    if "quota_failure" in details:
        return QUOTA_FIX
    return _FIXES.get(
        error.status.code, "run it again; if it is refused again, ask Nebius with the number of the request"
    )


_FIXES = {
    StatusCode.RESOURCE_EXHAUSTED: QUOTA_FIX,
    StatusCode.UNAUTHENTICATED: f"log in again: {LOGIN_FIX}",
    StatusCode.PERMISSION_DENIED: "ask for the role `editor` in the project `nebius.project`, or name another project",
    StatusCode.INVALID_ARGUMENT: "correct the property in the stack file",
    StatusCode.NOT_FOUND: "correct the id in the stack file, or run `muster up` again",
    StatusCode.ALREADY_EXISTS: "rename the cluster, or remove the resource in Nebius's console",
    StatusCode.FAILED_PRECONDITION: "wait until what uses it has been removed, then run it again",
    StatusCode.ABORTED: "wait until the other operation on it has ended, then run it again",
    StatusCode.UNAVAILABLE: CONNECTION_FIX,
    StatusCode.DEADLINE_EXCEEDED: CONNECTION_FIX,
}
