"""The leftovers of a local cluster: who owns cgroups, which carry no label, and which volumes are kept."""

from __future__ import annotations

import json
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
    """A Docker engine with the given containers and volumes, and no networks."""

    def __init__(self, *labels: dict[str, str], volumes: dict[str, dict[str, str]] | None = None) -> None:
        self._volumes = [{"Name": name, "Labels": each} for name, each in (volumes or {}).items()]
        self._containers = [{"Names": [f"/muster-demo-{i}"], "Labels": each} for i, each in enumerate(labels)]

    def containers(self, **_filters: Any) -> list[dict[str, Any]]:
        return self._containers

    def networks(self, **_filters: Any) -> list[dict[str, Any]]:
        return []

    def volumes(self, **_filters: Any) -> dict[str, Any]:
        return {"Volumes": self._volumes or None}


def labels_of(stack: str, home: Path) -> dict[str, str]:
    return names.labels("demo", stack, "2026-01-02T03:04:05+00:00") | names.home_labels(home)


def find_own_leftovers(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Return the leftovers that belong to stack `local`."""
    use(engine, monkeypatch)
    owned = exclude_other_stacks(leftovers.find("demo", Path("no-state")), "local")
    return [(leftover.kind, leftover.name) for leftover in owned]


def use(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def api_session(_what: str) -> Iterator[Engine]:
        yield engine

    monkeypatch.setattr(engine_client, "api_session", api_session)


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


@pytest.mark.parametrize(
    ("state", "staying"),
    [
        (None, ["labelled"]),
        ("", ["labelled"]),
        ('{"checkpoint": {}}', ["labelled"]),
        ([], ["labelled"]),
        ([("labelled", True), ("plain", False)], ["labelled"]),
        ([("labelled", False), ("plain", False)], []),
        ([("labelled", False), ("plain", True)], ["plain"]),
    ],
    ids=["no state", "empty file", "damaged", "destroyed", "unchanged", "no longer kept", "kept since"],
)
def test_the_last_up_decides_what_is_kept_and_the_label_without_a_state(
    state: str | list[tuple[str, bool]] | None,
    staying: list[str],
    here: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    volumes = {"labelled": labels_of("local", here) | {names.KEEP: "true"}, "plain": labels_of("local", here)}
    use(Engine(volumes=volumes), monkeypatch)
    file = tmp_path / "state.json"
    if isinstance(state, list):
        volume = "pulumi-python:dynamic/muster:DockerVolume"
        resources = [{"type": volume, "id": name, "protect": protect} for name, protect in state]
        file.write_text(json.dumps({"checkpoint": {"latest": {"resources": resources}}}))
    elif state is not None:
        file.write_text(state)
    reasons = {each.name: each.keep_reason for each in leftovers.find("demo", file) if each.kind == "volume"}
    assert reasons == {name: "keep: true" if name in staying else "" for name in volumes}
