"""`muster state` without a bucket: the state of this machine, and stacks that stay on it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from infra.engine import remote_state
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import Home
from muster.commands import state
from muster.commands.stacks import name_stack, resolve_stack
from tests.harness import small_spec

URL = "s3://team-state/clusters?region=us-east-1"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    stacks = tmp_path / "stacks"
    stacks.mkdir()
    nearby, cloud = small_spec(name="near"), {"name": "far", "target": "aws"}
    for name, spec in {"near": nearby, "far": cloud}.items():
        (stacks / f"Pulumi.{name}.yaml").write_text(yaml.safe_dump({"config": {"muster:cluster": spec}}))
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MUSTER_STACKS", str(stacks))
    monkeypatch.delenv("MUSTER_STATE", raising=False)
    return Home.of(os.environ)


def test_cluster_on_this_machine_keeps_its_state_here(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """No bucket is read for it: the URL names none that exists."""
    monkeypatch.setenv("MUSTER_STATE", URL)
    assert resolve_stack("near").state.is_relative_to(home.root / "state")
    assert name_stack("far").home.remote == URL
    assert name_stack("far").state.is_relative_to(home.root / "remote")


def test_state_of_a_removed_stack_file_is_found_here(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_STATE", URL)
    assert name_stack("gone").home.remote == URL
    left = home.stack("gone").state
    left.parent.mkdir(parents=True)
    left.write_text("{}")
    assert name_stack("gone").home.remote == ""


def test_variable_has_precedence_over_the_recorded_url(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    state.write_state_url(home, URL)
    assert Home.of(os.environ).remote == URL
    monkeypatch.setenv("MUSTER_STATE", "s3://other-state?region=us-east-1")
    assert Home.of(os.environ).remote == "s3://other-state?region=us-east-1"
    monkeypatch.setenv("MUSTER_STATE", "file")
    assert Home.of(os.environ).remote == ""


def test_file_makes_the_folder_the_state_again(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    state.write_state_url(home, URL)
    state.use("file")
    assert f"the state is in {home.root / 'state'}" in capsys.readouterr().out.replace("\n", "")
    assert Home.of(os.environ).remote == ""


def test_show_describes_the_folder(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    state.show("far", as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert (shown["state"], shown["stacks"], shown["lock"], shown["versions"]) == (str(home.state), [], "", [])


def test_a_stack_that_never_was_is_refused_and_a_removed_one_is_shown(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Stop, match=r"stack: .*Pulumi\.fra\.yaml does not exist") as stop:
        state.show("fra")
    assert stop.value.fix == "did you mean `far`? Otherwise choose one of: far, near"
    home.stack("fra").folder.mkdir(parents=True)
    state.show("fra")
    assert str(home.state) in capsys.readouterr().out.replace("\n", "")


def test_lock_of_the_folder_needs_no_command(home: Home) -> None:
    with pytest.raises(Stop) as stop:
        state.unlock("far", yes=True)
    assert stop.value.what == f"state: the state of stack far is in {home.state}, which only this machine uses"
    assert "takes over a lock whose process is gone" in stop.value.fix
    assert stop.value.code == BAD_INPUT


def test_folder_has_no_versions_to_restore(home: Home) -> None:
    with pytest.raises(Stop) as stop:
        state.restore("far", "1")
    assert stop.value.what == f"state: the state of stack far is in {home.state}, which only this machine uses"
    assert stop.value.fix.startswith("only a shared state has versions; `make up STACK=far` sets an unreadable state")


@pytest.mark.parametrize("url", ["clusters", "gs://bucket", ""])
def test_other_urls_are_refused(home: Home, url: str) -> None:
    with pytest.raises(Stop) as stop:
        state.create(url)
    assert "allowed: s3://BUCKET/PREFIX?region=REGION, file" in stop.value.what
    assert home.remote == ""


def test_a_url_that_is_none_is_corrected_where_it_came_from(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Stop, match=r"state: 'http://foo' is not the URL of a state; allowed: ") as given:
        state.use("http://foo")
    assert given.value.fix == "use a URL of one of these forms"
    monkeypatch.setenv("MUSTER_STATE", "http://bar")
    with pytest.raises(Stop) as set_by_variable:
        remote_state.open_store(Home.of(os.environ))
    assert set_by_variable.value.fix == "correct MUSTER_STATE"
