"""Retries of throttled calls: noted by every client that repeats calls, and summed up for the person who waits."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError

from bootstrap.progress import Event, emit
from infra.targets.aws.client import create_client
from infra.targets.aws.launcher.api import AwsApi
from infra.targets.aws.launcher.retries import Retry, describe_retries, take_retries
from infra.targets.aws.preflight.account import Account
from infra.targets.aws.send_command import Script, send_script
from tests.moto_server import REGION, Moto

NONE = Path("no such file")


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Record the waits instead of waiting."""
    take_retries(NONE)
    recorded: list[float] = []
    monkeypatch.setattr(time, "sleep", recorded.append)
    yield recorded
    take_retries(NONE)


def list_with_library() -> None:
    create_client("ec2", REGION).describe_instances()


def list_with_launcher() -> None:
    AwsApi(REGION, sleep=lambda _: None).call("ec2", "describe_instances")


def list_in_preflight() -> None:
    Account(boto3.Session(), REGION).client("ec2").describe_instances()


@pytest.mark.fault(25)
@pytest.mark.parametrize(("call", "times"), [(list_with_library, 3), (list_with_launcher, 3), (list_in_preflight, 1)])
def test_each_client_notes_its_retries(aws: Moto, call: Callable[[], None], times: int) -> None:
    call()
    assert take_retries(NONE) == []
    aws.fail("DescribeInstances", "RequestLimitExceeded", times=times)
    call()
    assert [retry.code for retry in take_retries(NONE)] == ["RequestLimitExceeded"] * times
    assert take_retries(NONE) == [], "they are reported once"


def test_a_script_that_is_sent_again_is_noted_with_its_wait(aws: Moto, waits: list[float]) -> None:
    (machine,) = aws.client("ec2").run_instances(ImageId="ami-12345678", MinCount=1, MaxCount=1)["Instances"]
    aws.fail("SendCommand", "ThrottlingException")
    send_script(REGION, [machine["InstanceId"]], Script("true", 1.0))
    assert take_retries(NONE) == [Retry("ThrottlingException", 1.0)]
    assert waits == [1.0]


def test_the_time_of_a_retry_is_that_between_two_answers(aws: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda _: now.__setitem__(0, now[0] + 2.0))
    aws.fail("DescribeInstances", "RequestLimitExceeded", times=2)
    list_with_library()
    assert [retry.seconds for retry in take_retries(NONE)] == [2.0, 2.0]


def test_an_error_that_ends_a_call_is_no_retry(aws: Moto) -> None:
    aws.fail("DescribeInstances", "UnauthorizedOperation")
    with pytest.raises(ClientError):
        list_with_library()
    assert take_retries(NONE) == []
    aws.fail("DescribeInstances", "RequestLimitExceeded", times=2)
    with pytest.raises(ClientError):
        list_in_preflight()
    assert len(take_retries(NONE)) == 1, "the last of two attempts is not repeated"


def test_processes_of_up_append_their_retries_to_the_progress_file(
    aws: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = tmp_path / "progress"
    monkeypatch.setenv("MUSTER_PROGRESS", str(progress))
    emit(Event("machines", "gpu-1", "boot", "start"))
    aws.fail("DescribeInstances", "RequestLimitExceeded")
    list_with_library()
    with progress.open("a") as file:
        file.write('{"half')
    assert [retry.code for retry in take_retries(progress)] == ["RequestLimitExceeded"]
    assert json.loads(progress.read_text().splitlines()[0])["node"] == "gpu-1"


def test_the_line_sums_up_calls_and_seconds_by_code() -> None:
    assert describe_retries([]) == ""
    retries = [Retry("SlowDown", 2.25), Retry("RequestLimitExceeded", 0.5), Retry("RequestLimitExceeded", 6.5)]
    assert describe_retries(retries) == (
        "AWS throttled or could not answer 3 calls of muster (2 RequestLimitExceeded, 1 SlowDown); "
        "retries took 9.2 s in all"
    )
    assert describe_retries([Retry("SlowDown", 0.04)]).startswith("AWS throttled or could not answer 1 call of")
