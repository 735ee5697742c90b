"""What the screen of `up` is told while machines are created."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.resources.error import ResourceError
from infra.targets.rented.progress import report_creation
from muster.commands.progress_board import EventTail


@pytest.fixture
def tail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EventTail:
    monkeypatch.setenv("MUSTER_PROGRESS", str(tmp_path / "progress"))
    return EventTail(tmp_path / "progress")


def read(tail: EventTail) -> list[tuple[str, str, str]]:
    return [(event.node, event.state, event.detail) for event in tail.events()]


def test_every_node_begins_and_ends(tail: EventTail) -> None:
    with report_creation(["gpu-1", "gpu-2"]):
        assert read(tail) == [("gpu-1", "start", ""), ("gpu-2", "start", "")]
    assert read(tail) == [("gpu-1", "changed", ""), ("gpu-2", "changed", "")]


def test_a_failure_names_its_reason(tail: EventTail) -> None:
    failure = ResourceError("azure.region", "no capacity", "try again later")
    with pytest.raises(ResourceError), report_creation(["gpu-1"]):
        raise failure
    assert read(tail) == [("gpu-1", "start", ""), ("gpu-1", "failed", str(failure))]


def test_resources_that_are_no_machine_report_nothing(tail: EventTail) -> None:
    with report_creation([]):
        pass
    assert read(tail) == []
