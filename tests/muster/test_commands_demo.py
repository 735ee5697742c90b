"""`muster demo`: what others see of it while it runs, and what it prints of the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.engine import lock
from infra.engine.stop import Stop
from infra.home import Home
from muster.commands import demo, up
from tests.muster.test_commands_parts import fake_ssh


def test_the_lock_names_the_command_that_the_user_typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    commands: list[str] = []

    def hold(_stack: object, command: str, **_: object) -> None:
        commands.append(command)
        raise Stop("held")

    monkeypatch.setattr(up, "_query_host", lambda _stack: None)
    monkeypatch.setattr("infra.targets.local.target.LocalTarget.prepare", lambda *_: None)
    monkeypatch.setattr(lock, "held", hold)
    with pytest.raises(Stop, match="held"):
        demo.demo("local")
    with pytest.raises(Stop, match="held"):
        up.up("local", force=False, wait=False)
    assert commands == ["demo", "up"]


def test_the_report_is_fetched_without_its_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fake_ssh(tmp_path, monkeypatch, 'case "$*" in *index.html*) printf page ;; *) echo "demo: finished" ;; esac')
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")
    assert demo._fetch_report(stack, "login", "/home/a/runs/demo-1").read_text() == "page"
    assert capfd.readouterr().out == ""
