"""What AWS's error codes mean for a launch: one table, read by everything that asks AWS for machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from botocore.exceptions import BotoCoreError, ClientError, ConnectionError, HTTPClientError

Kind = Literal["shortage", "throttle", "quota", "permission", "gone", "broken"]

TO_DO: dict[Kind, str] = {
    "shortage": "the next option is tried, and this one left alone for a while",
    "throttle": "asked again after a wait",
    "quota": "ask for more under Service Quotas, or let the group have fewer nodes",
    "permission": "give the controller's role what infra/plan/aws lists, or look at the account",
    "gone": "nothing: what should go has gone",
    "broken": "mend the option's template, reservation or subnet and run `muster up`",
}

# Of these the next try says something else, sooner or later.
PASSING: tuple[Kind, ...] = ("shortage", "throttle")

# Of these Karpenter's unfulfillable ones (pkg/errors/errors.go) are shortages or quotas.
_CODES: dict[Kind, tuple[str, ...]] = {
    "shortage": (
        "InsufficientInstanceCapacity",
        "InsufficientHostCapacity",
        "InsufficientReservedInstanceCapacity",
        "InsufficientCapacity",
        "InsufficientVolumeCapacity",
        "InsufficientFreeAddressesInSubnet",
        "ReservationCapacityExceeded",
        "UnfulfillableCapacity",
        "SpotMaxPriceTooLow",
        # The type is not sold in this zone; it may be in the next.
        "Unsupported",
    ),
    "throttle": (
        "RequestLimitExceeded",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "RequestThrottledException",
        "TooManyRequestsException",
        "EC2ThrottledException",
        "SlowDown",
        # Route 53: the change before this one is still under way.
        "PriorRequestNotComplete",
        "InternalError",
        "InternalFailure",
        "InternalServerError",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "Unavailable",
        "RequestTimeout",
    ),
    "quota": (
        "VcpuLimitExceeded",
        "InstanceLimitExceeded",
        "MaxSpotInstanceCountExceeded",
        "NetworkInterfaceLimitExceeded",
        "VolumeLimitExceeded",
        "MaxIOPSLimitExceeded",
        "ResourceLimitExceeded",
        "LimitExceeded",
    ),
    "permission": (
        "UnauthorizedOperation",
        "AccessDenied",
        "AccessDeniedException",
        "AuthFailure",
        "OptInRequired",
        "PendingVerification",
        "Blocked",
        "ExpiredToken",
        "ExpiredTokenException",
        "RequestExpired",
        "InvalidClientTokenId",
        "UnrecognizedClientException",
        "SignatureDoesNotMatch",
    ),
    "gone": ("InvalidInstanceID.NotFound", "NoSuchHostedZone", "NotFoundException", "ParameterNotFound"),
}
_KINDS = {code: kind for kind, codes in _CODES.items() for code in codes}
_NO_ANSWER = "NoAnswer"


@dataclass(frozen=True)
class Fault:
    kind: Kind
    code: str
    message: str = ""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code


class Refused(Exception):
    """AWS said no, or nothing, and asking again did not help."""

    def __init__(self, operation: str, fault: Fault) -> None:
        super().__init__(f"{operation}: {fault}; {TO_DO[fault.kind]}")
        self.fault = fault


def fault_of(error: ClientError | BotoCoreError) -> Fault:
    """A code that is not in the table is broken: it is reported, and never retried."""
    if isinstance(error, ClientError):
        said = error.response["Error"]
        return Fault(_KINDS.get(said["Code"], "broken"), said["Code"], said.get("Message", ""))
    if isinstance(error, (ConnectionError, HTTPClientError)):
        return Fault("throttle", _NO_ANSWER, str(error))
    # No credentials, no region, a parameter that the API does not know.
    return Fault("broken", type(error).__name__, str(error))
