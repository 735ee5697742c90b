"""AWS error codes: their kinds, and what follows from each kind for a launch. The only table of them.

It imports no boto3, which takes a while to load: every command of muster imports this file.
"""

from __future__ import annotations

from slurm.power.launcher import FaultKind

FIXES: dict[FaultKind, str] = {
    "shortage": "the next launch option is tried, and this one skipped for a while",
    "throttle": "retried after a wait",
    "quota": "request a higher quota under Service Quotas, or reduce the group's nodes",
    "permission": "grant the controller's role what infra/targets/aws/plan/iam.py lists, or check the account",
    "gone": "nothing to do: it no longer exists",
    "broken": "fix the option's instance type, zone, launch template, reservation or subnet and run `muster up`",
}

# Codes that Karpenter calls unfulfillable (pkg/errors/errors.go) are shortages or quotas here, except Unsupported.
CODES: dict[FaultKind, tuple[str, ...]] = {
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
        # Route 53: the previous change is still in progress.
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
    # The zone does not offer the type, or the type does not have an option of the launch. The next zone is tried, but
    # waiting changes nothing.
    "broken": ("Unsupported", "UnsupportedOperation", "InvalidParameterCombination"),
}
_KINDS = {code: kind for kind, codes in CODES.items() for code in codes}


def classify_code(code: str) -> FaultKind:
    """Return the kind of an error code; one that is not in the table is `broken`: reported and never retried."""
    return _KINDS.get(code, "broken")
