"""Azure's errors in words, at every call and in every operation, with the fix."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError
from azure.core.pipeline.transport import HttpTransport
from azure.identity import AzureCliCredential

from infra.resources.error import InUseError, ResourceError
from infra.targets.azure import bodies, client
from infra.targets.azure.client import open_cloud
from infra.targets.azure.refusals import IN_USE, explain_error, list_codes
from infra.targets.azure.spec import LOGIN_FIX
from tests.infra.targets.azure.fake_arm import FakeArm
from tests.infra.targets.azure.resources import (
    PROVIDER,
    SCALE_SETS,
    create,
    create_all,
    create_network,
    create_scale_set,
)
from tests.infra.targets.clock import Clock

POLICY = (
    "Resource 'muster-demo-gpu' was disallowed by policy. Policy identifiers: "
    '\'[{"policyAssignment":{"name":"Require a tag"}}]\'.'
)
CORES = (
    "Operation could not be completed as it results in exceeding approved standardNDSH100v5Family Cores quota. "
    "Current Limit: 96, Current Usage: 0, Additional Required: 192"
)
ERRORS: dict[str, tuple[int, str, str, str]] = {
    "quota": (403, "QuotaExceeded", "the limit is 96", "request a higher quota in Azure's portal"),
    "quota of CPUs": (409, "OperationNotAllowed", CORES, "request a higher quota in Azure's portal"),
    "not a quota": (409, "OperationNotAllowed", "the disk is attached", "change what it names"),
    "size": (409, "SkuNotAvailable", "not available in location 'eastus'", "choose another size, zone or region"),
    "no capacity": (409, "AllocationFailed", "not sufficient capacity", "try again later, or choose another zone"),
    "no capacity in the zone": (409, "ZonalAllocationFailed", "zone 2 is full", "try again later, or choose another"),
    "constraints": (409, "OverconstrainedAllocationRequest", "cannot be met", "try again later, or choose another"),
    "rights": (403, "AuthorizationFailed", "no authorization to write", "ask for the role `Contributor`"),
    "tenant": (401, "InvalidAuthenticationTokenTenant", "wrong issuer 'a', must be 'b'", "log in to the tenant that"),
    "token": (401, "ExpiredAuthenticationToken", "the token has expired", "log in again: run `az login`"),
    "policy": (403, "RequestDisallowedByPolicy", POLICY, "ask who administers the subscription for an exemption"),
    "lock": (409, "ScopeLocked", "the scope is locked", "remove the lock that it names"),
    "terms": (400, "MarketplacePurchaseEligibilityFailed", "terms", "accept the image's terms"),
    "bad value": (400, "InvalidParameter", "the value is invalid", "correct the property in the stack file"),
    "unknown": (500, "SomethingNew", "what is this", "run it again; if it is refused again, ask Azure"),
    "unknown and forbidden": (403, "SomethingElse", "you may not", "ask for the role `Contributor`"),
}


@pytest.mark.parametrize(("status", "code", "text", "fix"), ERRORS.values(), ids=ERRORS)
def test_errors_name_property_cause_and_fix(status: int, code: str, text: str, fix: str) -> None:
    error = explain_error("azure.region", status, {"error": {"code": code, "message": text}}, "request-1")
    assert str(error).startswith(f"azure.region: {code}: {text.rstrip('.')} (request request-1). Fix: {fix}")
    assert type(error) is ResourceError


@pytest.mark.parametrize("code", sorted(IN_USE))
def test_what_is_in_use_can_be_tried_again(code: str) -> None:
    error = explain_error("azure", 400, {"error": {"code": code, "message": "used by another"}})
    assert isinstance(error, InUseError)
    assert str(error).endswith("Fix: wait until what uses it has been removed, then run it again.")


def test_a_conflict_is_something_in_use_only_if_it_stops_a_deletion(arm: FakeArm) -> None:
    create("resource group", "", {})
    arm.fail("PUT", "/publicIPAddresses/", 409, "Conflict", "the name is taken")
    with pytest.raises(ResourceError, match=r"^azure: Conflict: the name is taken.*Fix: run it again; if it") as failed:
        create("public address", "muster-demo", bodies.public_address_body())
    assert type(failed.value) is ResourceError
    props = create("public address", "muster-demo", bodies.public_address_body())
    for in_operation in (False, True):
        status = 200 if in_operation else 409
        arm.fail("DELETE", "/publicIPAddresses/", status, "Conflict", "used by another", in_operation=in_operation)
        with pytest.raises(InUseError, match=r"^azure: Conflict: used by another.*Fix: wait until what uses it"):
            PROVIDER.delete(props["arm_id"], props)


def test_causes_inside_an_error_are_shown() -> None:
    inner = {"code": "AllocationFailed", "message": "no room for Standard_ND96isr_H100_v5", "target": "0"}
    body = {"error": {"code": "VMSSFailed", "message": "See details", "details": [inner, dict(inner)]}}
    assert list_codes(body) == ["VMSSFailed", "AllocationFailed", "AllocationFailed"]
    error = str(explain_error("azure.groups.gpu", 200, body))
    assert error.startswith(
        "azure.groups.gpu: AllocationFailed: 0: no room for Standard_ND96isr_H100_v5. Fix: try again"
    )


@pytest.mark.parametrize("body", [None, "", [], {}, {"error": "text"}, {"error": {}}, {"message": None}])
def test_answers_that_are_no_error_of_azure(body: Any) -> None:
    assert str(explain_error("azure", 502, body)).startswith("azure: Azure answered with status 502. Fix: run it again")


PATHS = (
    *("publicIP", "natGateways", "virtualNetworks", "amlFile"),
    *("/virtualMachines/", "networkInter", "ScaleSets"),
)
# A resource group is created at once, without an operation.
CREATIONS = [("Groups/", False), *((path, in_operation) for path in PATHS for in_operation in (False, True))]


@pytest.mark.parametrize(("path", "in_operation"), CREATIONS)
def test_an_error_at_every_creation_is_explained_and_the_next_run_continues(
    arm: FakeArm, path: str, in_operation: bool
) -> None:
    arm.fail("PUT", path, 200 if in_operation else 409, "QuotaExceeded", "the limit is 1", in_operation=in_operation)
    with pytest.raises(ResourceError, match=r"QuotaExceeded: the limit is 1.*Fix: request a higher quota"):
        create_all()
    create_all()
    states = {r["properties"].get("provisioningState") for r in arm.resources.values()}
    assert states == {"Succeeded"}


def test_errors_of_actions_on_a_scale_set(arm: FakeArm) -> None:
    create_network()
    props = create_scale_set(["gpu-1"])
    arm.fail("DELETE", "ScaleSets", 409, "ScopeLocked", "locked by 'production'", times=99)
    with pytest.raises(ResourceError, match=r"ScopeLocked: locked by 'production'.*remove the lock"):
        SCALE_SETS.delete(props["arm_id"], props)


def test_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(HttpTransport, "sleep", lambda _transport, seconds: clock.sleep(seconds))
    # Port 9 (discard) of this machine: nothing listens there.
    monkeypatch.setenv(client.LOOPBACK, "9")
    client._connect.cache_clear()
    with pytest.raises(ResourceError, match=r"azure: Azure does not answer: .*Fix: check the connection to"):
        create("resource group", "", {})
    client._connect.cache_clear()
    # The first retry comes at once.
    assert clock.slept == pytest.approx([1.6, 3.2, 6.4, 12.8, 25.6])


def test_a_login_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = re.escape("azure: the login to Azure failed: no account. Fix: run `az login`")
    with pytest.raises(ResourceError, match=expected), open_cloud("azure"):
        raise ClientAuthenticationError("no account\nmore")


def test_a_login_names_why_each_way_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("AZURE_"):
            monkeypatch.delenv(name)
    monkeypatch.delenv(client.LOOPBACK, raising=False)
    az = tmp_path / "az"
    az.write_text("#!/bin/sh\necho \"ERROR: AADSTS70043: the token of 'az' has expired\" >&2; exit 1\n")
    az.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    client._connect.cache_clear()
    with pytest.raises(ResourceError) as failed:
        create("resource group", "", {})
    client._connect.cache_clear()
    text = str(failed.value)
    assert text.startswith("azure: the login to Azure failed: EnvironmentCredential: ")
    assert "; AzureCliCredential: ERROR: AADSTS70043: the token of 'az' has expired" in text
    assert text.endswith(f"Fix: {LOGIN_FIX}.")
    assert "mitigate" not in text


def test_the_azure_cli_has_a_minute_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts: list[int] = []

    class Credential(AzureCliCredential):
        def __init__(self, *, process_timeout: int = 10) -> None:
            timeouts.append(process_timeout)
            super().__init__(process_timeout=process_timeout)

    monkeypatch.setattr(client, "AzureCliCredential", Credential)
    client._connect.__wrapped__("")
    assert timeouts == [60]


@pytest.mark.parametrize(
    ("text", "variables", "fix"),
    [
        ("no account", (), LOGIN_FIX),
        ("HTTPSConnection(host='a')", (), "check the connection to login.microsoftonline.com, then run it again"),
        (
            "not fully configured",
            ("AZURE_TENANT_ID", "AZURE_CLIENT_ID"),
            "set AZURE_CLIENT_SECRET, too; or unset AZURE_TENANT_ID, AZURE_CLIENT_ID, and run `az login`",
        ),
        (
            "AADSTS7000215",
            ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET"),
            "correct AZURE_TENANT_ID, AZURE_CLIENT_ID, AZURE_CLIENT_SECRET; or unset AZURE_TENANT_ID, "
            "AZURE_CLIENT_ID, AZURE_CLIENT_SECRET, and run `az login`",
        ),
        (
            "AADSTS700027",
            ("AZURE_TENANT_ID", "AZURE_CLIENT_CERTIFICATE_PATH"),
            "set AZURE_CLIENT_ID, too; or unset AZURE_TENANT_ID, AZURE_CLIENT_CERTIFICATE_PATH, and run `az login`",
        ),
    ],
)
def test_the_fix_of_a_login_names_what_is_missing_or_wrong(text: str, variables: tuple[str, ...], fix: str) -> None:
    assert client.choose_login_fix(text, dict.fromkeys(variables, "x")) == fix


def test_a_login_that_fails_is_said_only_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (*list(os.environ), client.LOOPBACK):
        if name.startswith("AZURE_") or name == client.LOOPBACK:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_TENANT_ID", "x")
    monkeypatch.setenv("AZURE_CLIENT_ID", "y")
    monkeypatch.setenv("PATH", str(tmp_path))
    client._connect.cache_clear()
    with pytest.raises(ResourceError, match=r"Fix: set AZURE_CLIENT_SECRET, too; or unset") as failed:
        create("resource group", "", {})
    client._connect.cache_clear()
    assert "Visit" not in str(failed.value)
    assert not caplog.records
