"""The progress display of `up`: rows and phases built from progress events."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

from bootstrap.progress import Event, announce
from infra.targets.registry import plan_of as plan
from muster.commands.progress import ProgressLog, ProgressTable, format_phase, select_visible
from muster.commands.progress_board import Board, EventTail, NodeRow, parse_events
from muster.commands.stack_spec import list_permanent_nodes
from tests.infra.targets.aws.specs import spec as aws_spec

EVENTS = [
    Event("machines", "gpu-1", "create", "start", t=10.0),
    Event("machines", "gpu-2", "create", "start", t=10.0),
    Event("machines", "gpu-1", "create", "changed", t=11.0),
    Event("machines", "gpu-2", "create", "changed", t=12.0),
    Event("bootstrap", "gpu-1", "users", "start", t=12.5),
    Event("bootstrap", "gpu-1", "users", "changed", t=13.0),
    Event("bootstrap", "gpu-2", "users", "start", t=13.0),
]


def board_after(events: list[Event]) -> Board:
    board = Board.for_nodes(["controller", "gpu-1", "gpu-2"])
    for event in events:
        board.update(event)
    return board


@pytest.mark.parametrize(
    ("count", "node", "expected"),
    [
        (0, "gpu-1", ("", "", "waiting", None)),
        (2, "gpu-1", ("starting", "create", "starting", 10.0)),
        (4, "gpu-2", ("up", "create", "started", 2.0)),
        (5, "gpu-1", ("up", "users", "configuring", 10.0)),
        (6, "gpu-1", ("up", "users", "configuring", 3.0)),
        (7, "controller", ("", "", "waiting", None)),
    ],
)
def test_row_follows_the_events_of_its_node(
    count: int, node: str, expected: tuple[str, str, str, float | None]
) -> None:
    row = board_after(EVENTS[:count]).rows[node]
    assert (row.machine, row.step, row.state, row.seconds(now=20.0)) == expected


def test_a_failed_node_stays_failed() -> None:
    failed = Event("bootstrap", "gpu-2", "users", "failed", "no disk", t=14.0)
    later = Event("bootstrap", "gpu-2", "users", "start", t=15.0)
    assert board_after([*EVENTS, failed, later]).rows["gpu-2"].state == "failed"


def test_nodes_outside_the_test_job_become_configured_when_it_starts() -> None:
    board = board_after([*EVENTS, Event("ready", "gpu-1", "gate", "start", t=14.0)])
    assert {row.node: row.state for row in board.rows.values()} == {
        "controller": "waiting",
        "gpu-1": "testing",
        "gpu-2": "configured",
    }
    assert board.rows["gpu-2"].seconds(now=20.0) == 3.0


def test_finish_distinguishes_changed_and_unchanged_nodes() -> None:
    board = board_after(EVENTS)
    board.finish()
    assert [row.state for row in board.rows.values()] == ["unchanged", "done", "done"]
    assert all(row.machine == "up" for row in board.rows.values())


def test_events_of_other_objects_add_no_rows() -> None:
    assert set(board_after([Event("ready", "gpu", "all-reduce", "start", t=1.0)]).rows) == {
        "controller",
        "gpu-1",
        "gpu-2",
    }


@pytest.mark.parametrize(
    ("count", "line"),
    [
        (4, "machines   2 of 3 nodes started, 2.0 s"),
        (7, "bootstrap  2 of 3 nodes, 1 step, 1 changed, 0.5 s"),
    ],
)
def test_phase_is_formatted_as_one_line(count: int, line: str) -> None:
    board = board_after(EVENTS[:count])
    assert board.phase is not None
    assert format_phase(board.phase, len(board.rows)) == line


def test_short_window_shows_unfinished_nodes_in_order() -> None:
    states = ["done"] * 30 + ["failed", "configuring", "done", "waiting"]
    rows = [NodeRow(f"n-{i}", state=state) for i, state in enumerate(states)]
    shown, hidden = select_visible(rows, 5)
    assert [row.node for row in shown] == ["n-0", "n-30", "n-31", "n-33"]
    assert hidden == 30


def test_all_rows_are_shown_if_they_fit() -> None:
    assert select_visible([NodeRow("a"), NodeRow("b")], 2)[1] == 0


def test_invalid_lines_are_skipped() -> None:
    assert [event.node for event in parse_events(['{"phase": "rea', "[]", json.dumps(vars(EVENTS[0]))])] == ["gpu-1"]


def test_partial_line_is_read_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    tail = EventTail(path)
    assert tail.events() == []
    line = json.dumps(vars(EVENTS[0])) + "\n"
    path.write_text(line[:20])
    assert tail.events() == []
    path.write_text(line)
    assert [event.node for event in tail.events()] == ["gpu-1"]
    assert tail.events() == []


def test_log_has_one_line_per_phase_and_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "progress.jsonl"
    lines = ProgressLog(["gpu-1", "gpu-2"], path)
    printed: list[str] = []
    monkeypatch.setattr(lines, "say", printed.append)
    failed = Event("bootstrap", "gpu-2", "users", "failed", "no disk", t=14.0)
    path.write_text("".join(json.dumps(vars(event)) + "\n" for event in [*EVENTS, failed]))
    lines.tick()
    lines.close()
    assert printed == [
        "machines   2 nodes started, 2.0 s",
        "bootstrap  gpu-2: users failed",
        "bootstrap  2 nodes, 1 step, 1 changed, 1.5 s",
    ]
    assert capsys.readouterr().out == ""


def test_notices_are_printed_between_the_lines_of_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "progress.jsonl"
    monkeypatch.setenv("MUSTER_PROGRESS", str(path))
    announce("the cloud does not answer")
    console = Console(file=io.StringIO(), width=60)
    lines, table = ProgressLog(["gpu-1"], path), ProgressTable(["gpu-1"], path, Live(console=console))
    printed: list[str] = []
    for view in (lines, table):
        monkeypatch.setattr(view, "say", printed.append)
        view.tick()
        view.tick()
    assert printed == ["the cloud does not answer"] * 2


NO_CAPACITY = "us-east-1a spot none, us-east-1a on-demand none, us-east-1b on-demand VcpuLimitExceeded; retrying"


def launch_events(*nodes: str, note: str = "", t: float = 20.0) -> list[Event]:
    return [Event("machines", node, "launch", "start", note, t=t) for node in nodes]


def test_missing_capacity_is_printed_while_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Print the zones once for all affected nodes, and again only if the reason changes."""
    path = tmp_path / "progress.jsonl"
    lines = ProgressLog(["gpu-1", "gpu-2", "cpu-1"], path)
    printed: list[str] = []
    monkeypatch.setattr(lines, "say", printed.append)
    notes = [NO_CAPACITY, NO_CAPACITY, "us-east-1a spot none (1 only); retrying"]
    text = ""
    for events in (
        launch_events("gpu-1", "gpu-2", "cpu-1"),
        *(launch_events("gpu-1", "gpu-2", note=note) for note in notes),
    ):
        text += "".join(json.dumps(vars(event)) + "\n" for event in events)
        path.write_text(text)
        lines.tick()
    assert printed == [f"machines   gpu-[1-2]: {NO_CAPACITY}", f"machines   gpu-[1-2]: {notes[-1]}"]
    failed = [Event("machines", node, "launch", "failed", "x", t=30.0) for node in ("gpu-1", "gpu-2")]
    path.write_text(text + "".join(json.dumps(vars(event)) + "\n" for event in failed))
    lines.tick()
    assert printed[2:] == ["machines   gpu-[1-2]: launch failed"]
    assert lines.board.waits == {}


def test_terminal_shows_missing_capacity_below_the_table(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    events = launch_events("gpu-1", "gpu-2", note=NO_CAPACITY)
    path.write_text("".join(json.dumps(vars(event)) + "\n" for event in events))
    console = Console(width=140, height=30, record=True, force_terminal=True, file=io.StringIO())
    table = ProgressTable(["controller", "gpu-1", "gpu-2"], path, Live(console=console))
    table.tick()
    console.print(table.draw(now=25.0))
    assert f"machines   gpu-[1-2]: {NO_CAPACITY}" in console.export_text()


def test_permanent_nodes_include_autoscaled_minimum() -> None:
    groups = {
        "h100": {"instance_type": "p5.48xlarge", "count": 2, "fabric": "efa"},
        "l4": {"instance_type": "g6.8xlarge", "min": 1, "max": 8},
    }
    assert list_permanent_nodes(plan(aws_spec(groups=groups))) == ["controller", "login", "h100-1", "h100-2", "l4-1"]
