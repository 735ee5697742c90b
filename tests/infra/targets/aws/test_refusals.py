"""Fixes for errors that resources report: every code of the table has one."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from botocore.exceptions import ClientError

from bootstrap.transport.base import TransportError
from infra.targets.aws import run_command
from infra.targets.aws.launcher.error_codes import CODES, FIXES, classify_code
from infra.targets.aws.refusals import explain_refusal
from slurm.power.launcher import Fault, LauncherError

UP = "make up STACK=demo"
EVERY_CODE = [*(code for codes in CODES.values() for code in codes), "NeverHeardOf"]
BOTO3 = "controller: An error occurred ({code}) when calling the RunInstances operation: no"
GO = "1 error occurred: operation error EC2: RunInstances, https response error StatusCode: 400, api error {code}: no"


@pytest.mark.parametrize("code", EVERY_CODE)
@pytest.mark.parametrize("form", [BOTO3, GO])
def test_every_code_has_a_fix_that_names_the_command(code: str, form: str) -> None:
    assert f"`{UP}`" in explain_refusal(form.format(code=code), UP)


@pytest.mark.parametrize("code", EVERY_CODE)
@pytest.mark.parametrize("message", ["no", ""])
def test_errors_of_the_launcher_have_a_fix_that_names_the_command(code: str, message: str) -> None:
    """Its own fix is for the controller, which goes on by itself."""
    kind = classify_code(code)
    error = LauncherError("change_resource_record_sets", Fault(kind, code, message), FIXES[kind])
    assert f"`{UP}`" in explain_refusal(f"{error}\npulumi.runtime.stack: nodes-gpu failed to register", UP)


@pytest.mark.parametrize("code", EVERY_CODE)
def test_errors_of_run_command_have_a_fix_that_names_the_command(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_command, "create_client", lambda *_: None)
    error = ClientError({"Error": {"Code": code, "Message": ""}}, "SendCommand")
    monkeypatch.setattr(run_command, "send_script", Mock(side_effect=error))
    with pytest.raises(TransportError) as caught:
        run_command.run("us-east-1", "i-0123456789abcdef0", "true", timeout_s=0.0)
    assert f"`{UP}`" in explain_refusal(str(caught.value), UP)


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
