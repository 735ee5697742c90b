"""Operations of Pulumi that take long: reported while they run and when they end, by their events."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infra.engine.events import EventPipe
from infra.engine.slow_operations import SLOW_S, SlowOperations

VPC = "aws:ec2/vpc:Vpc"
CAUSE = "the cloud is slow, or rejects calls, which are repeated"


def event(kind: str, name: str, resource: str = VPC, operation: str = "create") -> str:
    metadata = {"op": operation, "type": resource, "urn": f"urn:pulumi:toy::muster::{resource}::{name}"}
    return json.dumps({"sequence": 1, kind: {"metadata": metadata}})


class Watch:
    """The reports about events, at times that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.reports: list[str] = []
        self.operations = SlowOperations(self.reports.append, lambda: self.now)

    def after(self, seconds: float, *lines: str) -> list[str]:
        """Return what is reported about events that arrive after some seconds."""
        self.now += seconds
        self.reports.clear()
        self.operations.update(lines)
        return [*self.reports]


@pytest.mark.fault(25)
def test_an_operation_that_takes_long_is_reported_once_while_it_runs_and_when_it_ends() -> None:
    watch = Watch()
    assert watch.after(0, event("resourcePreEvent", "network"), event("resourcePreEvent", "bucket")) == []
    assert watch.after(SLOW_S - 1, event("resOutputsEvent", "bucket")) == []
    assert watch.after(1) == [f"still creating network ({VPC}) after 60 s: {CAUSE}"]
    assert watch.after(30) == []
    assert watch.after(5.4, event("resOutputsEvent", "network")) == [f"created network ({VPC}) after 95 s"]
    assert watch.after(SLOW_S) == []


@pytest.mark.parametrize(
    ("operation", "ends", "report"),
    [
        ("delete", "resOpFailedEvent", "stopped deleting"),
        ("update", "resOutputsEvent", "updated"),
        ("create-replacement", "resOutputsEvent", "created"),
    ],
)
def test_each_operation_has_its_words(operation: str, ends: str, report: str) -> None:
    watch = Watch()
    watch.after(0, event("resourcePreEvent", "network", operation=operation))
    assert len(watch.after(SLOW_S)) == 1
    assert watch.after(1, event(ends, "network", operation=operation)) == [f"{report} network ({VPC}) after 61 s"]


@pytest.mark.parametrize("resource", ["muster:aws:Network", "pulumi-python:dynamic:Resource", "pulumi:pulumi:Stack"])
def test_resources_with_a_progress_of_their_own_are_not_reported(resource: str) -> None:
    watch = Watch()
    watch.after(0, event("resourcePreEvent", "nodes", resource), event("resourcePreEvent", "network", operation="same"))
    assert watch.after(SLOW_S) == []


def test_lines_are_taken_when_they_are_complete(tmp_path: Path) -> None:
    with EventPipe(tmp_path / "events") as pipe, pipe.path.open("w") as written:
        written.write("first\nsec")
        written.flush()
        assert pipe.take_lines() == ["first"]
        written.write("ond\n")
        written.flush()
        assert (pipe.take_lines(), pipe.take_lines()) == (["second"], [])
        assert pipe.lines() == ["first", "second"]


def test_a_line_ends_only_at_a_line_break(tmp_path: Path) -> None:
    written = event("resourcePreEvent", "network\u0085").replace("\\u0085", "\u0085")
    with EventPipe(tmp_path / "events") as pipe:
        pipe.path.open("w").write(f"{written}\n")
        assert pipe.take_lines() == [written]
        assert pipe.lines() == [written]
