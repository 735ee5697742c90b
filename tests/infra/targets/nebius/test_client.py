"""Logins that do not work: profiles of Nebius's CLI that are incomplete, and files that are missing."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from infra.resources.error import ResourceError
from infra.targets.nebius import client
from infra.targets.nebius.client import Message, open_cloud
from infra.targets.nebius.kinds import IMAGE
from infra.targets.nebius.refusals import CONNECTION_FIX
from infra.targets.nebius.spec import LOGIN_FIX
from tests.infra.targets.nebius.fake_cloud import FakeCloud
from tests.infra.targets.nebius.profiles import use_profile
from tests.infra.targets.nebius.resources import create

ACCOUNT = "auth-type: service account, service-account-id: serviceaccount-e00a, public-key-id: publickey-e00a"
PROFILES = {
    "no profiles": ("{}", "No profiles found"),
    "not YAML": ("profiles: [", "expected the node content"),
    "no kind of login": ("profiles: {dev: {}}", "Missing auth-type"),
    "login with the browser": (
        "profiles: {dev: {auth-type: federation, federation-endpoint: example.org, federation-id: federation-e00a}}",
        "Client ID is required",
    ),
    "no key": (f"profiles: {{dev: {{{ACCOUNT}}}}}", "private-key"),
    "a key that is none": (f"profiles: {{dev: {{{ACCOUNT}, private-key: text}}}}", "PEM"),
    "a key file that is missing": (
        f"profiles: {{dev: {{{ACCOUNT}, private-key-file-path: /missing.pem}}}}",
        r"No such file or directory: '/missing\.pem'",
    ),
    "a token file that is missing": (
        "profiles: {dev: {token-file: /missing.txt}}",
        r"No such file or directory: '/missing\.txt'",
    ),
}


@pytest.mark.parametrize(("text", "cause"), PROFILES.values(), ids=PROFILES)
def test_a_profile_that_cannot_be_used_is_an_error_with_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, cause: str
) -> None:
    use_profile(tmp_path, monkeypatch, text)
    with pytest.raises(ResourceError, match=rf"^nebius: the login to Nebius does not work: .*{cause}") as refused:
        open_cloud("nebius").__enter__()
    assert str(refused.value).endswith(f"Fix: {LOGIN_FIX}.")


def test_an_api_that_does_not_answer_is_one_error_without_the_sdks_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv(client.LOOPBACK, str(closed.getsockname()[1]))
    monkeypatch.setattr(client, "FIRST_CALL_TIMEOUT_S", 1.0)
    expected = r"^nebius\.project: api\.nebius\.cloud does not answer \(.*\)"
    with pytest.raises(ResourceError, match=expected) as refused, open_cloud("nebius.project") as cloud:
        cloud.get(IMAGE, "image-1")
    assert str(refused.value).endswith(f"Fix: {CONNECTION_FIX}.")
    assert not caplog.records


def test_a_creation_that_begins_late_is_not_given_up(cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the first call, and have begun: a machine that nobody knows of would be paid for."""
    handle = cloud.handle

    def handle_late(service: str, method: str, request: Message) -> Message:
        time.sleep(0.5 if method == "Create" else 0)
        return handle(service, method, request)

    monkeypatch.setattr(cloud, "handle", handle_late)
    monkeypatch.setattr(client, "FIRST_CALL_TIMEOUT_S", 0.1)
    create("network", "demo", {})
    assert len(cloud.of_kind("Network")) == 1
