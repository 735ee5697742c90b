"""What `up` shows: rows and phases from progress events."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live

from bootstrap.progress import Event
from infra.targets.registry import plan_of as plan
from muster.commands.progress import (
    Board,
    EventTail,
    NodeRow,
    ProgressLog,
    ProgressTable,
    format_phase,
    parse_events,
    select_visible,
)
from muster.commands.stack_spec import list_permanent_nodes
from tests.infra.targets.aws.specs import spec as aws_spec

STORY = [
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
def test_a_row_follows_its_node(count: int, node: str, expected: tuple[str, str, str, float | None]) -> None:
    row = board_after(STORY[:count]).rows[node]
    assert (row.machine, row.step, row.state, row.seconds(now=20.0)) == expected


def test_a_failed_node_stays_failed() -> None:
    failed = Event("bootstrap", "gpu-2", "users", "failed", "no disk", t=14.0)
    later = Event("bootstrap", "gpu-2", "users", "start", t=15.0)
    assert board_after([*STORY, failed, later]).rows["gpu-2"].state == "failed"


def test_nodes_that_take_no_part_in_the_job_are_configured_when_it_begins() -> None:
    board = board_after([*STORY, Event("ready", "gpu-1", "gate", "start", t=14.0)])
    assert {row.node: row.state for row in board.rows.values()} == {
        "controller": "waiting",
        "gpu-1": "testing",
        "gpu-2": "configured",
    }
    assert board.rows["gpu-2"].seconds(now=20.0) == 3.0


def test_the_end_tells_touched_nodes_from_untouched_ones() -> None:
    board = board_after(STORY)
    board.finish()
    assert [row.state for row in board.rows.values()] == ["unchanged", "done", "done"]
    assert all(row.machine == "up" for row in board.rows.values())


def test_events_of_things_that_are_no_nodes_make_no_rows() -> None:
    assert set(board_after([Event("ready", "gpu", "all-reduce", "start", t=1.0)]).rows) == {
        "controller",
        "gpu-1",
        "gpu-2",
    }


@pytest.mark.parametrize(
    ("count", "line"),
    [
        (4, "machines   2 of 3 nodes started, 2.0 s"),
        (7, "bootstrap  2 of 3 nodes, 1 steps, 1 changed, 0.5 s"),
    ],
)
def test_a_phase_is_one_line(count: int, line: str) -> None:
    board = board_after(STORY[:count])
    assert board.phase is not None
    assert format_phase(board.phase, len(board.rows)) == line


def test_a_short_window_shows_what_matters_in_its_own_order() -> None:
    states = ["done"] * 30 + ["failed", "configuring", "done", "waiting"]
    rows = [NodeRow(f"n-{i}", state=state) for i, state in enumerate(states)]
    shown, hidden = select_visible(rows, 5)
    assert [row.node for row in shown] == ["n-0", "n-30", "n-31", "n-33"]
    assert hidden == 30


def test_all_rows_are_shown_where_they_fit() -> None:
    assert select_visible([NodeRow("a"), NodeRow("b")], 2)[1] == 0


def test_lines_that_are_no_events_are_passed_over() -> None:
    assert [event.node for event in parse_events(['{"phase": "rea', "[]", json.dumps(vars(STORY[0]))])] == ["gpu-1"]


def test_a_half_written_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    tail = EventTail(path)
    assert tail.events() == []
    line = json.dumps(vars(STORY[0])) + "\n"
    path.write_text(line[:20])
    assert tail.events() == []
    path.write_text(line)
    assert [event.node for event in tail.events()] == ["gpu-1"]
    assert tail.events() == []


def test_a_log_gets_one_line_per_phase_and_each_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "progress.jsonl"
    lines = ProgressLog(["gpu-1", "gpu-2"], path)
    printed: list[str] = []
    monkeypatch.setattr(lines, "say", printed.append)
    failed = Event("bootstrap", "gpu-2", "users", "failed", "no disk", t=14.0)
    path.write_text("".join(json.dumps(vars(event)) + "\n" for event in [*STORY, failed]))
    lines.tick()
    lines.close()
    assert printed == [
        "machines   2 nodes started, 2.0 s",
        "bootstrap  gpu-2: users failed",
        "bootstrap  2 nodes, 1 steps, 1 changed, 1.5 s",
    ]
    assert capsys.readouterr().out == ""


NONE_LEFT = "us-east-1a spot none, us-east-1a on-demand none, us-east-1b on-demand VcpuLimitExceeded; retrying"


def asked_for(*nodes: str, note: str = "", t: float = 20.0) -> list[Event]:
    return [Event("machines", node, "launch", "start", note, t=t) for node in nodes]


def test_missing_capacity_is_printed_while_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Print the zones once for all affected nodes, and again only if the reason changes."""
    path = tmp_path / "progress.jsonl"
    lines = ProgressLog(["gpu-1", "gpu-2", "cpu-1"], path)
    printed: list[str] = []
    monkeypatch.setattr(lines, "say", printed.append)
    tries = [NONE_LEFT, NONE_LEFT, "us-east-1a spot none (1 only); retrying"]
    text = ""
    for events in (asked_for("gpu-1", "gpu-2", "cpu-1"), *(asked_for("gpu-1", "gpu-2", note=note) for note in tries)):
        text += "".join(json.dumps(vars(event)) + "\n" for event in events)
        path.write_text(text)
        lines.tick()
    assert printed == [f"machines   gpu-[1-2]: {NONE_LEFT}", f"machines   gpu-[1-2]: {tries[-1]}"]
    failed = [Event("machines", node, "launch", "failed", "x", t=30.0) for node in ("gpu-1", "gpu-2")]
    path.write_text(text + "".join(json.dumps(vars(event)) + "\n" for event in failed))
    lines.tick()
    assert printed[2:] == ["machines   gpu-[1-2]: launch failed"]
    assert lines.board.waits == {}


def test_a_terminal_shows_capacity_under_the_table(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    events = asked_for("gpu-1", "gpu-2", note=NONE_LEFT)
    path.write_text("".join(json.dumps(vars(event)) + "\n" for event in events))
    console = Console(width=140, height=30, record=True, force_terminal=True, file=io.StringIO())
    table = ProgressTable(["controller", "gpu-1", "gpu-2"], path, Live(console=console))
    table.tick()
    console.print(table.draw(now=25.0))
    assert f"machines   gpu-[1-2]: {NONE_LEFT}" in console.export_text()


def test_nodes_that_always_exist_are_on_the_board_also_where_they_are_launched_by_name() -> None:
    groups = {
        "h100": {"instance_type": "p5.48xlarge", "count": 2, "fabric": "efa"},
        "l4": {"instance_type": "g6.8xlarge", "min": 1, "max": 8},
    }
    assert list_permanent_nodes(plan(aws_spec(groups=groups))) == ["controller", "login", "h100-1", "h100-2", "l4-1"]
