"""The leftovers of a local cluster: cgroups carry no label, so they belong to the owner of the node containers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster import names
from infra.targets.local import cgroup_tree, leftovers
from infra.targets.local import docker_engine as engine_client
from muster.deployments import exclude_other_stacks

GROUPS = ["muster/demo/gpu-1", "muster/demo"]


class Engine:
    """A Docker engine with the given containers, no networks and no volumes."""

    def __init__(self, *labels: dict[str, str]) -> None:
        self._containers = [{"Names": [f"/muster-demo-{i}"], "Labels": each} for i, each in enumerate(labels)]

    def containers(self, **_filters: Any) -> list[dict[str, Any]]:
        return self._containers

    def networks(self, **_filters: Any) -> list[dict[str, Any]]:
        return []

    def volumes(self, **_filters: Any) -> dict[str, Any]:
        return {"Volumes": None}


def labels_of(stack: str, home: Path) -> dict[str, str]:
    return names.labels("demo", stack, "2026-01-02T03:04:05+00:00") | names.home_labels(home)


def find_own_leftovers(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return the leftovers that a teardown of stack `local` would remove."""

    @contextmanager
    def api_session(_what: str) -> Iterator[Engine]:
        yield engine

    monkeypatch.setattr(engine_client, "api_session", api_session)
    return [(leftover.kind, leftover.name) for leftover in exclude_other_stacks(leftovers.find("demo"), "local")]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "here"))
    monkeypatch.setattr(cgroup_tree, "groups", lambda _cluster: GROUPS)
    return tmp_path / "here"


def test_cgroups_belong_to_the_stack_of_the_nodes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = {names.CLUSTER: "demo"}
    engine = Engine(helper, labels_of("local", here))
    cgroups = [name for kind, name in find_own_leftovers(engine, monkeypatch) if kind == "cgroup"]
    assert cgroups == ["muster/demo", "muster/demo/gpu-1"]


def test_cgroups_without_nodes_belong_to_every_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_own_leftovers(Engine(), monkeypatch) == [("cgroup", "muster/demo"), ("cgroup", "muster/demo/gpu-1")]


def test_cgroups_of_another_stack_are_ignored(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_own_leftovers(Engine(labels_of("original", here)), monkeypatch) == []


def test_cgroups_of_another_home_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_own_leftovers(Engine(labels_of("local", tmp_path / "there")), monkeypatch) == []
