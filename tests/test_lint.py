"""`make lint` counts what failed, and what could not run as neither passed nor failed."""

from __future__ import annotations

import os
import sys

import pytest

from tests import lint


def test_a_check_that_could_not_run_is_shown_and_counts_as_neither(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = {"good": 0, "bad": 1, "busy": os.EX_TEMPFAIL, "pip-audit": os.EX_TEMPFAIL}
    programs = {name: f"import sys; print('output of {name}'); sys.exit({code})" for name, code in codes.items()}
    commands = {name: [sys.executable, "-c", program] for name, program in programs.items()}
    monkeypatch.setattr(lint, "checks", lambda **_: commands)
    assert lint.main() == (1, 2, 1)
    shown = [line.split()[:2] for line in capsys.readouterr().out.splitlines()]
    verdicts = [line for line in shown if line != ["output", "of"]]
    assert verdicts == [["good", "ok"], ["bad", "FAILED"], ["busy", "FAILED"], ["pip-audit", "NOT"]]
    assert len(shown) == len(verdicts) + 3


def test_the_audits_are_part_of_lint() -> None:
    commands = [" ".join(command[1:]) for command in lint.checks().values()]
    assert {"-m release.cves", "-m release.audit"} <= set(commands)


def test_what_asks_a_live_database_can_be_left_out() -> None:
    assert set(lint.checks()) - set(lint.checks(audit=False)) == {"pip-audit"}
