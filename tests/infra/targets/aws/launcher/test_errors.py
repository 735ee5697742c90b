"""Classification of AWS error codes."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, NoCredentialsError, ReadTimeoutError

from infra.targets.aws.launcher.error_codes import CODES, FIXES
from infra.targets.aws.launcher.errors import classify_error
from slurm.power.launcher import Fault, LauncherError


def make_error(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "said so"}}, "RunInstances")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("InsufficientInstanceCapacity", "shortage"),
        ("InsufficientFreeAddressesInSubnet", "shortage"),
        ("ReservationCapacityExceeded", "shortage"),
        ("Unsupported", "broken"),
        ("RequestLimitExceeded", "throttle"),
        ("PriorRequestNotComplete", "throttle"),
        ("InternalError", "throttle"),
        ("VcpuLimitExceeded", "quota"),
        ("MaxSpotInstanceCountExceeded", "quota"),
        ("UnauthorizedOperation", "permission"),
        ("InvalidInstanceID.NotFound", "gone"),
        ("InvalidLaunchTemplateId.NotFound", "broken"),
        ("NeverHeardOf", "broken"),
    ],
)
def test_each_code_has_its_kind(code: str, kind: str) -> None:
    assert classify_error(make_error(code)) == Fault(kind, code, "said so")


def test_every_code_has_one_kind() -> None:
    codes = [code for codes in CODES.values() for code in codes]
    assert len(codes) == len(set(codes))


def test_timeouts_are_retried_and_missing_credentials_are_not() -> None:
    for error in (ConnectTimeoutError(endpoint_url="x"), ReadTimeoutError(endpoint_url="x")):
        assert classify_error(error).kind == "throttle"
    assert classify_error(NoCredentialsError()).kind == "broken"


def test_an_error_names_its_fix() -> None:
    message = str(LauncherError("run_instances", Fault("quota", "VcpuLimitExceeded", "512 vCPUs"), FIXES["quota"]))
    assert message == (
        "run_instances: VcpuLimitExceeded: 512 vCPUs; "
        "request a higher quota under Service Quotas, or reduce the group's nodes"
    )
