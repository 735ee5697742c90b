"""Whose a Docker object is: another stack's, another home's, nobody's; only the last and our own are taken over."""

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


def refusal(labels: dict[str, str]) -> str:
    with pytest.raises(ResourceError) as refused:
        engine_client.check_owner("volume", "muster-demo-shared", labels, "demo", "local")
    return str(refused.value)


def test_what_this_home_made_is_ours_by_whichever_path_it_is_reached(home: Path, tmp_path: Path) -> None:
    made = engine_client.labels("demo", "local", {"team": "x"})
    assert made["muster.home.path"] == str(home)
    engine_client.check_owner("volume", "muster-demo-shared", made, "demo", "local")
    home.mkdir()
    (tmp_path / "link").symlink_to(home)
    assert names.home_labels(tmp_path / "link") == names.home_labels(home)


def test_what_was_made_before_there_was_such_a_label_is_ours() -> None:
    engine_client.check_owner("volume", "muster-demo-shared", names.labels("demo", "local", AT), "demo", "local")


def test_another_home_is_named_with_the_command_that_removes_it(tmp_path: Path) -> None:
    there = tmp_path / "over there"
    labels = names.labels("demo", "local", AT) | names.home_labels(there)
    assert engine_client.foreign(labels)
    assert refusal(labels) == (
        "name: demo is in use: the Docker volume muster-demo-shared belongs to stack local of another checkout, "
        f"whose MUSTER_HOME is {there}. Fix: give the cluster of this stack another name, "
        f"or remove the other one with `MUSTER_HOME='{there}' make teardown STACK=local`."
    )


def test_another_stack_of_this_home_is_named() -> None:
    assert "belongs to stack other, not to stack local. Fix: give" in refusal(engine_client.labels("demo", "other", {}))


def test_what_nobody_of_muster_made_is_not_touched() -> None:
    assert "was not created by muster" in refusal({})
