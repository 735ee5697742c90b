"""Classes of error codes: muster does the same for all codes of a class, whichever call they meet.

What depends on a code is whether AWS's library repeats the call, its kind in the launcher's table, its fix, and which
parts of muster's code name it. A test compares all four with this table (tests/.../rehearse/errors/test_classes.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from infra.targets.aws.launcher.error_codes import classify_code
from infra.targets.aws.refusals import explain_refusal

NAMED: tuple[frozenset[str], ...] = tuple(
    frozenset(codes)
    for codes in (
        ("AccessDenied",),
        ("AccessDeniedException",),
        ("Blocked", "OptInRequired", "PendingVerification"),
        ("ExpiredToken", "ExpiredTokenException"),
        ("InsufficientInstanceCapacity",),
        ("RequestExpired",),
        ("SignatureDoesNotMatch",),
        ("UnauthorizedOperation",),
        ("MaxSpotInstanceCountExceeded", "VcpuLimitExceeded"),
    )
)
"""Codes that muster's code names outside the tables of kinds and fixes; those of a set are named in the same places."""


def group_codes(codes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return codes by class, in their order."""
    classes: dict[object, list[str]] = {}
    for code in codes:
        named = next((names for names in NAMED if code in names), None)
        fix = explain_refusal(f"An error occurred ({code}) when calling the Any operation: no", "up")
        classes.setdefault(named or (classify_code(code), fix), []).append(code)
    return tuple(map(tuple, classes.values()))


def order_by_class(codes: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return codes in rounds: the first code of each class, the second of each that has one, and so on."""
    classes = group_codes(codes)
    rounds = range(max(map(len, classes), default=0))
    return tuple(tuple(names[number] for names in classes if number < len(names)) for number in rounds)
