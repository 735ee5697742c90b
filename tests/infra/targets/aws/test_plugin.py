"""Pulumi's AWS plugin: taken from Pulumi's folder or PATH, else fetched once; a failure stops `up` early."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.engine.stop import Stop
from infra.home import Home
from infra.targets.aws import plugin as aws_plugin

FETCHES = """#!/bin/sh
echo "$@" >>"$PULUMI_HOME/commands"
mkdir -p "$PULUMI_HOME/plugins/resource-aws-$5"
"""
FAILS = "#!/bin/sh\necho 'error: no route to host' >&2\nexit 1\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return Home.of({"MUSTER_HOME": str(tmp_path / "home"), "MUSTER_CACHE": str(tmp_path / "cache")})


def install_pulumi(home: Home, script: str) -> None:
    home.tools.mkdir(parents=True)
    (home.tools / "pulumi").write_text(script)
    (home.tools / "pulumi").chmod(0o755)


def test_the_plugin_is_fetched_once_in_the_version_of_the_library(home: Home, tmp_path: Path) -> None:
    install_pulumi(home, FETCHES)
    progress: list[str] = []
    for _ in range(2):
        aws_plugin.ensure(home, progress.append)
    version = aws_plugin.required_version()
    command = f"plugin install resource aws {version} --non-interactive --color never\n"
    assert (tmp_path / "commands").read_text() == command
    assert progress == [f"fetching Pulumi's AWS plugin {version}; once for all stacks"]


def test_a_failed_download_stops_with_the_reason(home: Home) -> None:
    install_pulumi(home, FAILS)
    with pytest.raises(Stop, match="could not be fetched: error: no route to host; nothing was started") as stop:
        aws_plugin.ensure(home, lambda _: None)
    assert f"`pulumi plugin install resource aws {aws_plugin.required_version()}` must work" in stop.value.fix


def test_a_plugin_on_the_path_is_enough(home: Home) -> None:
    install_pulumi(home, FAILS)
    (home.tools / "pulumi-resource-aws").write_text("")
    (home.tools / "pulumi-resource-aws").chmod(0o755)
    aws_plugin.ensure(home, lambda _: None)


def test_a_partial_download_does_not_count(tmp_path: Path) -> None:
    env = {"PULUMI_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    folder = tmp_path / "plugins" / f"resource-aws-{aws_plugin.required_version()}"
    folder.mkdir(parents=True)
    assert aws_plugin.installed(env)
    folder.with_name(f"{folder.name}.partial").touch()
    assert not aws_plugin.installed(env)
