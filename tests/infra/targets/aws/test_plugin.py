"""Pulumi's AWS plugin: in Pulumi's folder or on PATH, else fetched once and verified; a failure stops `up` early."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.engine.stop import Stop
from infra.home import Home
from infra.targets.aws import plugin as aws_plugin
from tests.infra.targets.aws.plugin_server import serve_plugin

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


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with serve_plugin(tmp_path / "served", monkeypatch) as path:
        yield path


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
    unverified = f"not verified: no checksum is pinned for {platform.machine()}"
    assert progress == [f"fetching Pulumi's AWS plugin {version}; once for all stacks; {unverified}"]


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


def test_a_pinned_plugin_is_installed_from_the_verified_archive(home: Home, archive: Path, tmp_path: Path) -> None:
    install_pulumi(home, FETCHES + 'cp "$7" "$PULUMI_HOME/file"\n')
    progress: list[str] = []
    aws_plugin.ensure(home, progress.append)
    assert (tmp_path / "file").read_bytes() == archive.read_bytes()
    assert progress == [f"fetching Pulumi's AWS plugin {aws_plugin.required_version()}; once for all stacks"]


def test_a_plugin_that_its_origin_replaced_is_rejected(home: Home, archive: Path, tmp_path: Path) -> None:
    install_pulumi(home, FETCHES)
    archive.write_bytes(b"another program")
    with pytest.raises(Stop, match=r"has SHA-256 \w{64}, infra/targets/aws/plugin.py has \w{64}: not used"):
        aws_plugin.ensure(home, lambda _: None)
    assert not (tmp_path / "commands").exists()


def test_a_pinned_plugin_that_is_not_served_stops_with_the_reason(home: Home, archive: Path) -> None:
    install_pulumi(home, FETCHES)
    archive.unlink()
    with pytest.raises(
        Stop, match=r"could not be fetched: http://.*HTTP Error 404: File not found; nothing was started"
    ):
        aws_plugin.ensure(home, lambda _: None)
