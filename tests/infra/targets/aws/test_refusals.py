"""Fixes for errors that Pulumi's own resources report: every code of the table has one."""

from __future__ import annotations

import pytest

from infra.targets.aws.launcher.error_codes import CODES
from infra.targets.aws.refusals import explain_refusal

UP = "make up STACK=demo"
BOTO3 = "controller: An error occurred ({code}) when calling the RunInstances operation: no"
GO = "1 error occurred: operation error EC2: RunInstances, https response error StatusCode: 400, api error {code}: no"


@pytest.mark.parametrize("code", [*(code for codes in CODES.values() for code in codes), "NeverHeardOf"])
@pytest.mark.parametrize("form", [BOTO3, GO])
def test_every_code_has_a_fix_that_names_the_command(code: str, form: str) -> None:
    assert f"`{UP}`" in explain_refusal(form.format(code=code), UP)


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        ("InsufficientInstanceCapacity", "that zone has no capacity now"),
        ("SpotMaxPriceTooLow", "AWS has no capacity for it now"),
        ("MaxSpotInstanceCountExceeded", "request a higher quota"),
        ("VpcLimitExceeded", "request a higher quota"),
        ("ExpiredToken", "log in again"),
        ("UnauthorizedOperation", "grant the caller the permission"),
        ("RequestLimitExceeded", "wait a minute"),
        ("InvalidSubnetID.NotFound", "resolve what AWS rejects"),
        ("EntityAlreadyExists", "another resource in the account has that name"),
    ],
)
def test_the_fix_fits_the_code(code: str, fix: str) -> None:
    assert explain_refusal(BOTO3.format(code=code), UP).startswith(fix)
    assert explain_refusal(GO.format(code=code), UP).startswith(fix)


@pytest.mark.parametrize("message", ["the controller did not report. Fix: look at its log.", "no space left on device"])
def test_other_messages_get_no_fix(message: str) -> None:
    assert explain_refusal(message, UP) == ""
