"""The wait for a spot notice, with the metadata service of a rehearsal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from infra.targets.aws.node import spot_notice
from infra.targets.aws.rehearse.metadata import Metadata, serve_metadata

MACHINE = Metadata(
    instance="i-1", address="127.0.0.1", launch_index=0, tags={}, user_data="", role="role", access_key="", is_spot=True
)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Metadata]]:
    """Yield a list whose last entry is what the service answers with."""
    machines = [MACHINE]
    with serve_metadata("127.0.0.1", lambda _: machines[-1]) as port:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{port}")
        yield machines


def test_the_notice_is_printed_when_it_comes(service: list[Metadata], capsys: pytest.CaptureFixture[str]) -> None:
    def sleep(_seconds: float) -> None:
        assert capsys.readouterr().out == ""
        service.append(replace(MACHINE, taken_at=datetime(2026, 11, 16, 12, 0, tzinfo=UTC)))

    assert spot_notice.main(sleep) == 0
    assert capsys.readouterr().out == "spot: EC2 will terminate it at 2026-11-16T12:00:00Z\n"


def test_a_machine_on_demand_does_not_wait(service: list[Metadata], capsys: pytest.CaptureFixture[str]) -> None:
    service.append(replace(MACHINE, is_spot=False))
    assert spot_notice.main(lambda _: pytest.fail("it waits")) == 0
    assert capsys.readouterr().out == ""


def test_a_service_that_does_not_answer_is_asked_again(
    service: list[Metadata], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service.append(replace(MACHINE, is_spot=False))
    answers: Iterator[OSError | str] = iter([OSError("no route"), "on-demand"])

    def read(_path: str) -> str:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr("infra.targets.aws.node.imds.read", read)
    slept: list[float] = []
    assert spot_notice.main(slept.append) == 0
    assert slept == [spot_notice.PAUSE_S]
