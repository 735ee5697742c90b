"""What AWS's codes mean."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, NoCredentialsError, ReadTimeoutError

from slurm.power import errors


def refusal(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "said so"}}, "RunInstances")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("InsufficientInstanceCapacity", "shortage"),
        ("InsufficientFreeAddressesInSubnet", "shortage"),
        ("ReservationCapacityExceeded", "shortage"),
        ("Unsupported", "shortage"),
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
def test_codes(code: str, kind: str) -> None:
    assert errors.fault_of(refusal(code)) == errors.Fault(kind, code, "said so")  # type: ignore[arg-type]


def test_a_code_means_one_thing() -> None:
    codes = [code for codes in errors._CODES.values() for code in codes]
    assert len(codes) == len(set(codes))


def test_no_answer_is_asked_again_and_no_credentials_are_not() -> None:
    for error in (ConnectTimeoutError(endpoint_url="x"), ReadTimeoutError(endpoint_url="x")):
        assert errors.fault_of(error).kind == "throttle"
    assert errors.fault_of(NoCredentialsError()).kind == "broken"


def test_what_is_refused_says_what_to_do() -> None:
    said = str(errors.Refused("run_instances", errors.Fault("quota", "VcpuLimitExceeded", "512 vCPUs")))
    assert said == (
        "run_instances: VcpuLimitExceeded: 512 vCPUs; "
        "ask for more under Service Quotas, or let the group have fewer nodes"
    )
