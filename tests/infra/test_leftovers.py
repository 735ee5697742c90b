"""What teardown finds of a cluster: cgroups carry no label, and belong to whoever has the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster import names
from infra.targets.local import cgroup_tree, leftovers
from infra.targets.local import docker_engine as engine_client
from muster.deployments import exclude_other_stacks as own

GROUPS = ["muster/demo/gpu-1", "muster/demo"]


class Engine:
    """One that holds the containers it was given, and nothing else."""

    def __init__(self, *labels: dict[str, str]) -> None:
        self.held = [{"Names": [f"/muster-demo-{at}"], "Labels": found} for at, found in enumerate(labels)]

    def containers(self, **_filters: Any) -> list[dict[str, Any]]:
        return self.held

    def networks(self, **_filters: Any) -> list[dict[str, Any]]:
        return []

    def volumes(self, **_filters: Any) -> dict[str, Any]:
        return {"Volumes": None}


def made_by(stack: str, home: Path) -> dict[str, str]:
    return names.labels("demo", stack, "2026-01-02T03:04:05+00:00") | names.home_labels(home)


def found(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What teardown of stack `local` counts as its own."""

    @contextmanager
    def asking(_what: str) -> Iterator[Engine]:
        yield engine

    monkeypatch.setattr(engine_client, "asking", asking)
    return [(one.kind, one.name) for one in own(leftovers.find("demo"), "local")]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "here"))
    monkeypatch.setattr(cgroup_tree, "groups", lambda _cluster: GROUPS)
    return tmp_path / "here"


def test_cgroups_of_nodes_of_this_stack_are_its_own(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = {names.CLUSTER: "demo"}
    assert [name for kind, name in found(Engine(helper, made_by("local", here)), monkeypatch) if kind == "cgroup"] == [
        "muster/demo",
        "muster/demo/gpu-1",
    ]


def test_cgroups_without_nodes_are_for_whoever_tears_down(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(Engine(), monkeypatch) == [("cgroup", "muster/demo"), ("cgroup", "muster/demo/gpu-1")]


def test_cgroups_of_another_stacks_nodes_are_not_left_by_this_one(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(Engine(made_by("original", here)), monkeypatch) == []


def test_cgroups_of_another_homes_nodes_are_not_left_by_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(Engine(made_by("local", tmp_path / "there")), monkeypatch) == []
