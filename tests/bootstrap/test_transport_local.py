"""The local transport: a real shell on this machine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from bootstrap.transport.base import Completed, TransportError
from bootstrap.transport.local import LocalTransport


def test_output_errors_and_exit_code_are_returned() -> None:
    assert LocalTransport().run("echo out; echo err >&2; exit 3") == Completed(3, "out\n", "err\n")


def test_the_script_reads_its_stdin() -> None:
    assert LocalTransport().run("read -r a; cat", stdin=b"first\nrest").out == "rest"


def test_a_script_need_not_read_its_stdin() -> None:
    assert LocalTransport().run("true", stdin=b"x" * 5_000_000).code == 0


def test_a_long_script_runs() -> None:
    assert LocalTransport().run("true\n" * 100_000 + "echo end").out == "end\n"


def test_lines_are_reported_while_the_script_runs(tmp_path: Path) -> None:
    seen, lines = tmp_path / "seen", []

    def report(line: str) -> None:
        lines.append(line)
        seen.touch()

    script = f"echo a; for try in $(seq 300); do [ -e {seen} ] && break; sleep 0.1; done; [ -e {seen} ] && echo b"
    LocalTransport().run(script, on_line=report)
    assert [line.strip() for line in lines] == ["a", "b"]


def test_a_timeout_kills_the_script_and_its_children() -> None:
    began = time.monotonic()
    with pytest.raises(TransportError, match="node this machine: no answer within 0 s"):
        LocalTransport().run("sleep 600 & wait", timeout=0.2)
    assert time.monotonic() - began < 300


def test_put_then_get(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    LocalTransport().put(str(path), b"\x00\xff", 0o640)
    assert LocalTransport().get(str(path)) == b"\x00\xff"
    assert path.stat().st_mode & 0o777 == 0o640


def test_unreadable_and_unwritable_files_are_errors() -> None:
    with pytest.raises(TransportError, match="cannot read /nowhere: No such file"):
        LocalTransport().get("/nowhere")
    with pytest.raises(TransportError, match="cannot write /proc/nowhere"):
        LocalTransport().put("/proc/nowhere", b"")
