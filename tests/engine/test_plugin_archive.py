"""Pulumi installs its AWS plugin from the archive that was downloaded and verified."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.engine.stop import Stop
from infra.home import Home
from infra.targets.aws import plugin
from tests.infra.targets.aws.plugin_server import PROGRAM, serve_plugin


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Return paths with the installed Pulumi and an empty folder for its plugins."""
    monkeypatch.setenv("PULUMI_HOME", str(tmp_path))
    return Home.of(os.environ)


def test_the_verified_archive_is_installed(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_plugin(tmp_path / "served", monkeypatch):
        plugin.ensure(home, lambda _: None)
    installed = tmp_path / "plugins" / f"resource-aws-{plugin.required_version()}" / "pulumi-resource-aws"
    assert installed.read_bytes() == PROGRAM
    assert os.access(installed, os.X_OK)


def test_a_replaced_archive_is_not_installed(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_plugin(tmp_path / "served", monkeypatch) as archive:
        archive.write_bytes(archive.read_bytes() + b"more")
        with pytest.raises(Stop, match="not used; nothing was started"):
            plugin.ensure(home, lambda _: None)
    assert not (tmp_path / "plugins").exists()
