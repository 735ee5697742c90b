"""Pulumi's AWS plugin: found where Pulumi or PATH has it, fetched once, else missing before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.engine.stop import Stop
from infra.home import Home
from infra.targets.aws import plugin as aws_plugin

FETCHES = """#!/bin/sh
echo "$@" >>"$PULUMI_HOME/asked"
mkdir -p "$PULUMI_HOME/plugins/resource-aws-$5"
"""
FAILS = "#!/bin/sh\necho 'error: no route to host' >&2\nexit 1\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return Home.of({"MUSTER_HOME": str(tmp_path / "home"), "MUSTER_CACHE": str(tmp_path / "cache")})


def pulumi(home: Home, script: str) -> None:
    home.tools.mkdir(parents=True)
    (home.tools / "pulumi").write_text(script)
    (home.tools / "pulumi").chmod(0o755)


def test_it_is_fetched_once_in_the_version_of_the_library(home: Home, tmp_path: Path) -> None:
    pulumi(home, FETCHES)
    said: list[str] = []
    for _ in range(2):
        aws_plugin.ensure(home, said.append)
    wanted = aws_plugin.required_version()
    asked = f"plugin install resource aws {wanted} --non-interactive --color never\n"
    assert (tmp_path / "asked").read_text() == asked
    assert said == [f"fetching Pulumi's AWS plugin {wanted}; once for all stacks"]


def test_one_that_cannot_be_fetched_ends_it_with_the_reason(home: Home) -> None:
    pulumi(home, FAILS)
    with pytest.raises(Stop, match="could not be fetched: error: no route to host; nothing was started") as stop:
        aws_plugin.ensure(home, lambda _: None)
    assert f"`pulumi plugin install resource aws {aws_plugin.required_version()}` must work" in stop.value.fix


def test_one_on_the_path_is_enough(home: Home) -> None:
    pulumi(home, FAILS)
    (home.tools / "pulumi-resource-aws").write_text("")
    (home.tools / "pulumi-resource-aws").chmod(0o755)
    aws_plugin.ensure(home, lambda _: None)


def test_half_of_one_is_none(tmp_path: Path) -> None:
    env = {"PULUMI_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    folder = tmp_path / "plugins" / f"resource-aws-{aws_plugin.required_version()}"
    folder.mkdir(parents=True)
    assert aws_plugin.installed(env)
    folder.with_name(f"{folder.name}.partial").touch()
    assert not aws_plugin.installed(env)
