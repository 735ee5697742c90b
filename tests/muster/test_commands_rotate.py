"""`muster rotate keys`: each step is a run of `up`, and one that was interrupted goes on where it stopped."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from infra.engine import pulumi
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import Home, StackHome
from infra.targets.mixins import RotatesKeys
from infra.targets.registry import parse_spec, target_of
from muster.commands import rotate
from slurm.config.auth_key import generate_key, take_step

SPEC = {"name": "demo", "target": "local", "groups": {"gpu": {"count": 1}}}


class Cluster:
    """A running cluster whose `up` takes the steps that it is told, in its state and on its nodes."""

    def __init__(self, stack: StackHome) -> None:
        self.stack, self.state, self.runs = stack, generate_key(), list[str]()
        self.nodes = self.state
        self.fails_at: str | None = None

    def resources(self, _stack: StackHome) -> list[dict[str, Any]]:
        key = {"plaintext": json.dumps(base64.b64encode(self.state).decode())}
        return [
            {"type": "pulumi-python:muster:ChangeGuard", "inputs": {"spec": json.dumps(SPEC)}},
            {"type": "pulumi-python:muster:ClusterSecrets", "outputs": {"slurm_key": key}},
        ]

    def up(self, _name: str, *, rotation: str, **_options: Any) -> None:
        self.runs.append(rotation)
        self.state = take_step(self.state, rotation)
        if self.fails_at == rotation:
            raise Stop("node gpu-1 does not answer", "start it")
        self.nodes = self.state


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    stack = Home(repo=tmp_path, root=tmp_path, cache=tmp_path, stacks=tmp_path).stack("trial")
    stack.folder.mkdir()
    running = Cluster(stack)
    spec = parse_spec(json.dumps(SPEC))
    monkeypatch.setattr(rotate, "require_running_stack", lambda _name: stack)
    monkeypatch.setattr(rotate, "examine_spec", lambda *_: (spec, []))
    monkeypatch.setattr(rotate, "up", running.up)
    monkeypatch.setattr(pulumi, "resources", running.resources)
    return running


def test_three_steps_replace_the_key(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    old = cluster.state
    rotate.rotate_keys("trial")
    assert cluster.runs == ["accept", "sign", "drop"]
    assert cluster.nodes == cluster.state != old
    assert not cluster.stack.rotation_mark.exists()
    printed = capsys.readouterr().out
    assert "step 1 of 3: every node accepts the old and the new key" in printed
    assert "stack trial has a new Slurm key; the old one is refused" in printed


@pytest.mark.parametrize(
    ("fails_at", "later"),
    [("accept", ["", "sign", "drop"]), ("sign", ["", "drop"]), ("drop", [""])],
)
def test_a_rotation_that_stopped_is_continued_after_the_nodes_have_its_last_step(
    cluster: Cluster, fails_at: str, later: list[str]
) -> None:
    cluster.fails_at = fails_at
    number = ["accept", "sign", "drop"].index(fails_at) + 1
    with pytest.raises(Stop, match="node gpu-1 does not answer") as stopped:
        rotate.rotate_keys("trial")
    assert f"the rotation stopped at step {number} of 3" in stopped.value.what
    assert stopped.value.fix == "start it; then `.venv/bin/muster rotate keys --stack trial` continues"
    assert cluster.stack.rotation_mark.exists()
    cluster.fails_at = None
    cluster.runs.clear()
    rotate.rotate_keys("trial")
    assert cluster.runs == later
    assert cluster.nodes == cluster.state
    assert rotate.read_next_step(cluster.resources(cluster.stack), "trial") == "accept"
    assert not cluster.stack.rotation_mark.exists()


def test_up_continues_a_rotation_but_starts_none(cluster: Cluster) -> None:
    cluster.stack.rotation_mark.write_text("accept")
    rotate.continue_rotation("trial")
    assert cluster.runs == []
    assert not cluster.stack.rotation_mark.exists()
    cluster.state = cluster.nodes = take_step(cluster.state, "accept")
    cluster.stack.rotation_mark.write_text("accept")
    rotate.continue_rotation("trial")
    assert cluster.runs == ["", "sign", "drop"]
    assert not cluster.stack.rotation_mark.exists()


def test_other_changes_of_the_stack_file_are_applied_first(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = parse_spec(json.dumps(SPEC | {"groups": {"gpu": {"count": 3}}}))
    monkeypatch.setattr(rotate, "examine_spec", lambda *_: (changed, []))
    with pytest.raises(Stop, match=r"has changes that the cluster does not have: groups\.gpu\.count") as stopped:
        rotate.rotate_keys("trial")
    assert (stopped.value.code, cluster.runs) == (BAD_INPUT, [])


def test_a_target_that_cannot_rotate_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = parse_spec(json.dumps(SPEC))
    assert isinstance(target_of(spec), RotatesKeys)
    monkeypatch.setattr(rotate, "target_of", lambda _spec: type("Other", (), {"name": "shelf"})())
    with pytest.raises(Stop, match="stack trial has target shelf, which cannot rotate keys; allowed: "):
        rotate.require_rotation("trial", spec)


def test_a_stack_without_a_cluster_has_no_key() -> None:
    with pytest.raises(Stop, match="the stack has no cluster yet"):
        rotate.read_next_step([], "trial")
