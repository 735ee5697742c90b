"""Calls that Azure limits or cannot answer, and operations that wait for others: repeated, told, and given up."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
from azure.core.exceptions import ServiceRequestError
from azure.core.pipeline.transport import HttpTransport, RequestsTransport

from infra.resources.error import ResourceError
from infra.targets.azure import bodies, client, retries
from infra.targets.azure.retries import describe_wait
from muster.commands.progress_board import EventTail
from tests.infra.targets.azure.fake_arm import FakeArm
from tests.infra.targets.azure.resources import create
from tests.infra.targets.clock import Clock


@pytest.fixture
def clock(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let pauses between two tries of a call pass on the clock, too."""
    monkeypatch.setattr(HttpTransport, "sleep", lambda _transport, seconds: clock.sleep(seconds))
    return clock


def test_another_operation_in_progress_is_waited_for(arm: FakeArm, monkeypatch: pytest.MonkeyPatch) -> None:
    create("resource group", "", {})
    arm.fail("PUT", "/publicIPAddresses/", 409, "AnotherOperationInProgress", times=3)
    create("public address", "muster-demo", bodies.public_address_body())
    arm.fail("PUT", "/publicIPAddresses/", 200, "RetryableError", in_operation=True)
    create("public address", "another", bodies.public_address_body())
    # One that never ends is reported.
    monkeypatch.setattr(client, "BUSY_PAUSE_S", 1e6)
    arm.fail("PUT", "/publicIPAddresses/", 409, "AnotherOperationInProgress", "still busy", times=99)
    with pytest.raises(ResourceError, match="AnotherOperationInProgress: still busy"):
        create("public address", "third", bodies.public_address_body())


@pytest.fixture
def notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EventTail:
    """Return a reader of the notices that the screen of `up` shows."""
    monkeypatch.setenv("MUSTER_PROGRESS", str(tmp_path / "progress"))
    return EventTail(tmp_path / "progress")


@pytest.mark.parametrize(("status", "limit_s"), [(429, retries.LIMITED_S), (503, retries.UNANSWERED_S)])
def test_limited_calls_wait_as_long_as_azure_says_until_their_time_is_up(
    arm: FakeArm, clock: Clock, status: int, limit_s: float
) -> None:
    create("resource group", "", {})
    limits = {"Retry-After": "17"}
    last = int(limit_s // 17)
    arm.fail("PUT", "/publicIPAddresses/", status, "TooManyRequests", headers=limits, times=last)
    create("public address", "muster-demo", bodies.public_address_body())
    assert clock.slept == [17.0] * last
    arm.fail("PUT", "/publicIPAddresses/", status, "TooManyRequests", headers=limits, times=last + 1)
    with pytest.raises(ResourceError, match=r"TooManyRequests: .*Fix: wait a few minutes, then run it again"):
        create("public address", "another", bodies.public_address_body())


def test_a_call_that_azure_cannot_answer_ends_after_minutes_and_says_so(
    arm: FakeArm, clock: Clock, notices: EventTail
) -> None:
    create("resource group", "", {})
    arm.fail("PUT", "/publicIPAddresses/", 503, "ServiceUnavailable", "down", times=99)
    with pytest.raises(ResourceError, match=r"^azure: ServiceUnavailable: down .*\. Fix: run it again"):
        create("public address", "muster-demo", bodies.public_address_body())
    assert clock.slept == [1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4]
    assert sum(clock.slept) < retries.UNANSWERED_S
    assert notices.events() == []
    lines = notices.take_notices()
    assert len(lines) == len(clock.slept) - 1  # without the shortest pause
    assert lines[-1] == (
        "Azure cannot answer PUT of muster-demo (status 503) for 101 s; next try in 102 s, gives up after 240 s"
    )
    assert notices.take_notices() == []


def test_without_a_connection_a_call_ends_within_a_minute(
    arm: FakeArm, clock: Clock, notices: EventTail, monkeypatch: pytest.MonkeyPatch
) -> None:
    create("resource group", "", {})
    monkeypatch.setattr(RequestsTransport, "send", refuse_connection)
    with pytest.raises(ResourceError, match="Azure does not answer: no route to host"):
        create("public address", "muster-demo", bodies.public_address_body())
    assert clock.slept == [1.6, 3.2, 6.4, 12.8, 25.6]
    notices.events()
    assert notices.take_notices()[-1] == (
        "Azure does not answer GET of muster-demo for 24 s; next try in 26 s, gives up after 60 s"
    )


def refuse_connection(*_arguments: Any, **_options: Any) -> NoReturn:
    raise ServiceRequestError("no route to host")


def test_a_limited_call_ends_before_a_pause_that_takes_too_long(arm: FakeArm, clock: Clock, notices: EventTail) -> None:
    create("resource group", "", {})
    arm.fail("PUT", "/publicIPAddresses/", 429, "TooManyRequests", headers={"Retry-After": "400"}, times=99)
    with pytest.raises(ResourceError, match="TooManyRequests"):
        create("public address", "muster-demo", bodies.public_address_body())
    assert clock.slept == [400.0, 400.0]
    notices.events()
    assert notices.take_notices()[-1] == (
        "Azure limits calls: PUT of muster-demo is refused (status 429) for 400 s; next try in 400 s, "
        "gives up after 900 s"
    )


def test_waiting_for_another_operation_is_told_once_a_minute(
    arm: FakeArm, clock: Clock, notices: EventTail, monkeypatch: pytest.MonkeyPatch
) -> None:
    create("resource group", "", {})
    arm.fail("PUT", "/publicIPAddresses/", 409, "AnotherOperationInProgress", times=20)
    monkeypatch.setattr(client, "BUSY_PAUSE_S", 5.0)
    create("public address", "muster-demo", bodies.public_address_body())
    notices.events()
    assert notices.take_notices() == [
        f"Azure is busy with muster-demo (AnotherOperationInProgress): PUT has waited {waited} s; gives up after 600 s"
        for waited in (0, 60)
    ]


def test_without_a_progress_file_the_notice_is_printed(
    arm: FakeArm, clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MUSTER_PROGRESS", raising=False)
    arm.fail("PUT", "/resourceGroups/", 500, "Broken", headers={"Retry-After": "3"})
    create("resource group", "", {})
    assert clock.slept == [3.0]
    assert capsys.readouterr().err == (
        "Azure cannot answer PUT of muster-demo (status 500) for 0 s; next try in 3 s, gives up after 240 s\n"
    )


def test_a_call_without_an_answer_is_named_as_such() -> None:
    assert describe_wait("GET of demo", None, 7.4, 12.8, 240.0) == (
        "Azure does not answer GET of demo for 7 s; next try in 13 s, gives up after 240 s"
    )
