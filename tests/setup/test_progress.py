"""The progress display: a line every few seconds in a log, one live line per running phase on a terminal."""

from __future__ import annotations

import io
import re
import threading
from pathlib import Path

import pytest

from setup import progress
from setup.progress import Progress


class Output(io.StringIO):
    """A stream that signals when it contains a text."""

    def __init__(self, expected: str, terminal: bool = False) -> None:
        super().__init__()
        self.expected, self.terminal = expected, terminal
        self.reached = threading.Event()

    def isatty(self) -> bool:
        return self.terminal

    def flush(self) -> None:
        if self.expected in self.getvalue():
            self.reached.set()


@pytest.fixture(autouse=True)
def _refresh_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PLAIN_S", 0.01)
    monkeypatch.setattr(progress, "LIVE_S", 0.01)


def test_progress_shows_the_newest_line_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "image.log").write_text("Step 4/9\nSetting up slurmctld\n")
    out = Output("slurmctld")
    with Progress(out) as display:
        display.start("image", tmp_path / "image.log", "image starts")
        assert out.reached.wait(60)
    first, second = out.getvalue().splitlines()[:2]
    assert first == "image starts"
    assert re.fullmatch(r"image {9,11}\d+ s  Setting up slurmctld", second)
    assert "\x1b" not in out.getvalue()


def test_the_live_line_is_rewritten_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("x" * 500)
    out = Output("venv ", terminal=True)
    with Progress(out) as display:
        display.start("venv", tmp_path / "log")
        assert out.reached.wait(60)
    assert "\r\x1b[Kvenv " in out.getvalue()
    assert out.getvalue().endswith("\r\x1b[K")
    assert "\n" not in out.getvalue()


def test_each_running_phase_has_a_live_line(tmp_path: Path) -> None:
    for name in ("pulumi", "env"):
        (tmp_path / name).write_text(f"work of {name}\n")
    out = Output("work of env", terminal=True)
    with Progress(out) as display:
        display.start("pulumi", tmp_path / "pulumi")
        display.start("env", tmp_path / "env")
        assert out.reached.wait(60)
        display.finish("env", "env is done")
        out.seek(0)
        out.truncate()
        out.expected = "work of pulumi"
        out.reached.clear()
        assert out.reached.wait(60)
    assert "work of env" not in out.getvalue()


def test_live_lines_are_erased_before_a_message(tmp_path: Path) -> None:
    display = Progress(Output("", terminal=True))
    display._drawn = 3
    display.finish("env", "env is done")
    assert isinstance(display.out, Output)
    assert display.out.getvalue() == "\r\x1b[K" + "\x1b[1A\x1b[K" * 2 + "env is done\n"
