"""Output stays within the width of the terminal."""

from __future__ import annotations

import io
import os
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.commands.console import show_progress
from simulator.commands.plan import main
from simulator.terminal import DEFAULT_COLUMNS, error_prefix, format_problem, render_table, terminal_width, wrap_text
from trainer.config.errors import ConfigProblem

FULL = (("row", "what", "time", "more"), [("1", "a machine", "3 days", "99 %"), ("2", "another", "4 days", "98 %")])
SHORT = (("row", "what", "time"), [("1", "a machine", "3 days"), ("2", "another", "4 days")])


def test_widest_table_that_fits_is_used() -> None:
    assert "99 %" in render_table(80, FULL, SHORT)
    assert "99 %" not in render_table(23, FULL, SHORT)
    assert "3 days" in render_table(23, FULL, SHORT)


def test_excess_columns_continue_below() -> None:
    text = render_table(17, FULL, SHORT)
    assert max(map(len, text.splitlines())) <= 17
    assert [line.split()[0] for line in text.splitlines() if line] == ["row", "---", "1", "2"] * 2
    for word in ("another", "4 days", "98 %"):
        assert word in text


@given(st.lists(st.text("abc,.-/:", min_size=1, max_size=20), max_size=60), st.integers(40, 120))
def test_wrapped_text_has_the_same_words(terms: list[str], columns: int) -> None:
    text = wrap_text(" ".join(terms), columns)
    assert text.split() == terms
    assert all(len(line) <= columns for line in text.splitlines())


@pytest.mark.parametrize("columns", range(40, 60))
def test_wrapping_keeps_numbers_with_their_units(columns: int) -> None:
    text = "it takes 2.6 d (2.3 d to 3.0 d) and costs 256,108 USD with a checkpoint of 96 GB every 6.9 min at 1.2 GB/s"
    assert not [line for line in wrap_text(text, columns).splitlines() if line.rstrip()[-1].isdecimal()]


def test_long_list_of_allowed_values_follows_the_fix() -> None:
    names = ", ".join(f"model-{n}" for n in range(60))
    lines = format_problem(
        ConfigProblem("model", f"'x' is not known; allowed: {names}", "did you mean y?"), 100
    ).splitlines()
    assert lines[0] == "simulator: model: 'x' is not known; did you mean y?"
    assert lines[1].startswith("  allowed: model-0, model-1, ")
    assert max(map(len, lines)) <= 100
    assert "model-59" in lines[-1]


def test_warning_starts_with_the_command_as_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/muster", "predict", "--runs", "x.csv"])
    assert error_prefix() == "muster predict"


def test_errors_through_muster_look_like_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/muster", "plan"])
    arguments = ["--model", "lama-8b", "--tokens", "abc", "--stack", "aws-p5en-lustre"]
    assert main(arguments) == 2
    model, model_fix, *tokens = capsys.readouterr().err.splitlines()
    assert model.startswith("✗ model: 'lama-8b' is not known; allowed: bloom-176b, ")
    assert model_fix == "  fix: did you mean llama-8b or llama-7b or llama-3b?"
    assert tokens == ["✗ tokens: 'abc' is not a number", "  fix: write for example 1e12"]
    monkeypatch.setenv("COLUMNS", "80")
    assert main(arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["✗ model: 'lama-8b' is not known", model_fix]
    assert lines[2].startswith("  allowed: bloom-176b, ")
    assert max(map(len, lines)) <= 80


def test_progress_has_a_label_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with show_progress("reading the stack"):
        pass
    assert "reading the stack" in screen.getvalue()


def test_short_problem_is_unchanged() -> None:
    short = ConfigProblem("model", "'x' is not known; allowed: y, z", "choose one of them")
    assert format_problem(short, 100) == f"simulator: {short}"


def test_width_is_the_terminal_width_or_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "93")
    assert terminal_width() == 93
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(os, "get_terminal_size", lambda _: (_ for _ in ()).throw(OSError))
    assert terminal_width() == DEFAULT_COLUMNS < 120


def test_narrow_table_shortens_costs_and_keeps_goodput(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--model", "llama-405b", "--tokens", "15.6e12", "--stack", "aws-p5en-lustre", "--nodes", "512"]
    monkeypatch.setenv("COLUMNS", "110")
    assert main(arguments) == 0
    head, _, row = capsys.readouterr().out.splitlines()[:3]
    assert "useful" in head
    assert "MWh" not in head
    assert re.search(r"\d+\.\d M \(\d+\.\d M to [\d,]+\.\d M\)", row)
