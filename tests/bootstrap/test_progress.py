"""Progress events as lines of JSON, and the table that shows them."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from rich.console import Console

from bootstrap.progress import Event, emit
from bootstrap.table import ProgressTable
from tests.bootstrap.clusters import inventory


def test_events_of_many_threads_do_not_interleave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "progress.jsonl"
    monkeypatch.setenv("MUSTER_PROGRESS", str(path))
    events = [Event("bootstrap", f"n{i}", "hosts", "changed", "x" * 500) for i in range(50)]
    threads = [threading.Thread(target=emit, args=(e,)) for e in events]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(r["node"] for r in read) == sorted(e.node for e in events)
    assert set(read[0]) == {"phase", "node", "step", "state", "detail", "t"}


def test_nothing_is_written_without_a_progress_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_PROGRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    emit(Event("ready", "n", "s", "ok"))
    assert list(tmp_path.iterdir()) == []


def test_the_table_has_a_column_per_node_or_group_and_a_row_per_step() -> None:
    board = ProgressTable(inventory())
    for node, state in (("controller", "ok"), ("login", "skipped"), ("gpu-1", "changed"), ("gpu-2", "ok")):
        board(Event("bootstrap", node, "hosts", state))
    board(Event("bootstrap", "gpu-1", "compute", "start"))
    board(Event("bootstrap", "gpu-1", "compute", "failed"))
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115  # closed with the test
    console.print(board)
    lines = [line.split() for line in console.export_text().splitlines()]
    assert lines == [
        ["step", "controller", "login", "gpu", "(2)"],
        ["hosts", "ok", "skipped", "1", "changed,", "1", "ok"],
        ["compute", "failed"],
    ]
