"""The owner of a Docker object: only objects of this stack and this MUSTER_HOME are used."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster import names
from infra.resources.error import ResourceError
from infra.targets.local import docker_engine as engine_client

AT = "2026-01-02T03:04:05+00:00"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "here"))
    return tmp_path / "here"


def owner_error(labels: dict[str, str]) -> str:
    with pytest.raises(ResourceError) as error:
        engine_client.check_owner("volume", "muster-demo-shared", labels, "demo", "local")
    return str(error.value)


def test_objects_of_this_home_are_ours_even_through_a_symlink(home: Path, tmp_path: Path) -> None:
    labels = engine_client.labels("demo", "local", {"team": "x"})
    assert labels["muster.home.path"] == str(home)
    engine_client.check_owner("volume", "muster-demo-shared", labels, "demo", "local")
    home.mkdir()
    (tmp_path / "link").symlink_to(home)
    assert names.home_labels(tmp_path / "link") == names.home_labels(home)


def test_objects_without_the_home_label_are_ours() -> None:
    engine_client.check_owner("volume", "muster-demo-shared", names.labels("demo", "local", AT), "demo", "local")


def test_error_names_the_other_home_and_its_teardown_command(tmp_path: Path) -> None:
    there = tmp_path / "over there"
    labels = names.labels("demo", "local", AT) | names.home_labels(there)
    assert engine_client.is_foreign(labels)
    assert owner_error(labels) == (
        "name: demo is in use: the Docker volume muster-demo-shared belongs to stack local of another checkout, "
        f"whose MUSTER_HOME is {there}. Fix: give the cluster of this stack another name, "
        f"or remove the other one with `MUSTER_HOME='{there}' make teardown STACK=local`."
    )


def test_error_names_the_other_stack() -> None:
    assert "belongs to stack other, not to stack local. Fix: give" in owner_error(
        engine_client.labels("demo", "other", {})
    )


def test_objects_not_created_by_muster_are_an_error() -> None:
    assert "was not created by muster" in owner_error({})
