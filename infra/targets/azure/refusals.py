"""Errors of Azure's API in words: the property, what was refused, and the fix. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from infra.resources.error import InUseError, ResourceError
from infra.targets.azure.spec import LOGIN_FIX

QUOTA_FIX = "request a higher quota in Azure's portal (Quotas, Compute), or make the cluster smaller"
CAPACITY_FIX = "try again later, or choose another zone, region or size; muster keeps what exists"
AGAIN_FIX = "run it again; if it is refused again, ask Azure with the text and the number of the request"
NOT_OFFERED_FIX = "choose another size, zone or region; `az vm list-skus --size SIZE --all` lists where it is offered"
RIGHTS_FIX = "ask for the role `Contributor` in the subscription `azure.subscription`, or name another subscription"
# Another call is changing the resource, or the service could not finish: repeating the same call usually succeeds.
TRANSIENT = frozenset({"AnotherOperationInProgress", "RetryableError", "ConcurrentOperationNotAllowed"})
# Something else uses the resource.
IN_USE = frozenset(
    {
        *("InUseSubnetCannotBeDeleted", "InUseNetworkSecurityGroupCannotBeDeleted", "PublicIPAddressCannotBeDeleted"),
        *("NatGatewayInUseBySubnet", "InUseNatGatewayCannotBeDeleted", "NicInUse", "NetworkInterfaceInUse"),
        *("InUseVirtualNetworkCannotBeDeleted", "ResourceGroupNotEmpty", "DiskInUse"),
    }
)
# Only of a deletion it says that something uses the resource; elsewhere it can be anything.
CONFLICT = "Conflict"
_FIXES: Mapping[str, str] = {
    "QuotaExceeded": QUOTA_FIX,
    "AllocationFailed": CAPACITY_FIX,
    "ZonalAllocationFailed": CAPACITY_FIX,
    "OverconstrainedAllocationRequest": CAPACITY_FIX,
    "OverconstrainedZonalAllocationRequest": CAPACITY_FIX,
    "SkuNotAvailable": NOT_OFFERED_FIX,
    "AuthorizationFailed": RIGHTS_FIX,
    "LinkedAuthorizationFailed": RIGHTS_FIX,
    "InvalidAuthenticationTokenTenant": "log in to the tenant that it names: `az login --tenant TENANT`",
    "InvalidAuthenticationToken": f"log in again: {LOGIN_FIX}",
    "ExpiredAuthenticationToken": f"log in again: {LOGIN_FIX}",
    "SubscriptionNotFound": "correct `azure.subscription`; `az account list` shows yours",
    "RequestDisallowedByPolicy": "ask who administers the subscription for an exemption from the policy that it names, "
    "or add what it requires (for example `tags:`)",
    "ScopeLocked": "remove the lock that it names: `az lock list` shows it",
    "MarketplacePurchaseEligibilityFailed": "accept the image's terms: `az vm image terms accept --urn IMAGE`",
    "ResourcePurchaseValidationFailed": "accept the image's terms: `az vm image terms accept --urn IMAGE`",
    "MissingSubscriptionRegistration": "register the provider that it names: `az provider register --namespace NAME`",
    "TooManyRequests": "wait a few minutes, then run it again",
    "OperationNotAllowed": "change what it names, then run it again",
    "InvalidParameter": "correct the property in the stack file",
    "ResourceNotFound": "correct the id in the stack file, or run `muster up` again",
    "ResourceGroupNotFound": "run `muster up` again",
    "ResourceGroupBeingDeleted": "wait until it is gone, then run it again",
}
_QUOTA_WORDS = ("quota", "cores")


def explain_error(
    where: str, status: int | None, body: Any, request: str = "", *, deleting: bool = False
) -> ResourceError:
    """Return the error that a user sees, from the status and body of an answer; status None if there was none."""
    in_use = IN_USE | {CONFLICT} if deleting else IN_USE
    codes, messages = list_codes(body), list(dict.fromkeys(_list_messages(body)))
    what = "; ".join(messages) or f"Azure answered with status {status}"
    cause = next((code for code in codes if code in _FIXES or code in in_use), codes[0] if codes else "")
    if cause and cause not in what:
        what = f"{cause}: {what}"
    if request:
        what = f"{what.rstrip('.')} (request {request})"
    if cause in in_use:
        return InUseError(where, what, "wait until what uses it has been removed, then run it again")
    return ResourceError(where, what, _choose_fix(cause, status, what))


def list_codes(body: Any) -> list[str]:
    """Return the codes of an error, the outermost first: Azure wraps causes in `details`, or puts them into a text."""
    return [str(entry["code"]) for entry in _walk(body) if entry.get("code")]


def _choose_fix(code: str, status: int | None, text: str) -> str:
    if code == "OperationNotAllowed" and any(word in text.casefold() for word in _QUOTA_WORDS):
        return QUOTA_FIX
    if code in _FIXES:
        return _FIXES[code]
    return {401: f"log in again: {LOGIN_FIX}", 403: RIGHTS_FIX, 429: _FIXES["TooManyRequests"]}.get(
        status or 0, AGAIN_FIX
    )


def _list_messages(body: Any) -> Iterator[str]:
    entries = list(_walk(body))
    # The outer message of a nested error only says that there is one.
    for entry in entries[1:] or entries:
        if entry.get("message"):
            target = f"{entry['target']}: " if entry.get("target") else ""
            yield f"{target}{entry['message']}".strip()


def _walk(body: Any) -> Iterator[Mapping[str, Any]]:
    error = body.get("error", body) if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return
    if error.get("code") or error.get("message"):
        yield error
    for inner in error.get("details") or ():
        yield from _walk(inner)
