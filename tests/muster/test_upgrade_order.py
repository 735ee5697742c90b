"""The order of `muster upgrade` and of its return: packages, a pause of launches, the nodes, the stack file, `up`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from bootstrap.transport.base import Completed, Transport, TransportError
from bootstrap.upgrade.steps import DISTRIBUTION, PublishedPackages
from cluster.inventory import Inventory, Node
from cluster.spec import ClusterSpec
from infra.engine import pulumi
from infra.engine.stop import Stop
from infra.home import Home, StackHome
from infra.targets.mixins import UpgradeNodes, Upgrades
from infra.targets.registry import load_spec
from muster.commands import upgrade as command
from tests.bootstrap.clusters import inventory
from tests.full_disk import fill_disk
from tests.harness import REPO

SNAPSHOT = "== queue\n7|1000|gpu|PENDING|N/A|Resources|train\n== accounts\n== records\n== total\n1\n"
CONTROL = ["controller install", "controller slurmdbd", "controller slurmctld"]
NODES = ["gpu-2 node", "gpu-1 node", "login node"]


@dataclass
class RecordedTarget(Upgrades):
    """A target that records what is done to its nodes; `failing` is the step that fails."""

    # ARG002, in all methods: a record needs only some of the protocol's arguments.

    failing: str = ""
    events: list[str] = field(default_factory=list)
    release: str = ""

    def check_release(self, spec: ClusterSpec, stack: StackHome, release: str) -> None:
        self.release = release

    def reach_nodes(self, spec: ClusterSpec, stack: StackHome, inventory: Inventory) -> UpgradeNodes:
        return UpgradeNodes(inventory, self.connect, DISTRIBUTION, "/backups")

    def publish_packages(
        self,
        spec: ClusterSpec,
        stack: StackHome,
        nodes: UpgradeNodes,
        release: str,
    ) -> PublishedPackages:
        self.events.append(f"packages of {release}")
        return PublishedPackages("/shared/packages", "")

    @contextmanager
    def hold_launches(
        self,
        spec: ClusterSpec,
        stack: StackHome,
        *,
        keep_after_error: bool = False,
    ) -> Iterator[None]:
        self.events.append("hold")
        try:
            yield
        except BaseException:
            self.events.append("hold is kept" if keep_after_error else "hold ends")
            raise

    def open_twin(
        self, spec: ClusterSpec, stack: str, controller: Node, release: str
    ) -> AbstractContextManager[Transport]:
        raise NotImplementedError

    def connect(self, node: Node) -> Transport:
        return RecordedNode(node.name, self)


@dataclass
class RecordedNode:
    """A node whose scripts are recorded instead of run."""

    name: str
    target: RecordedTarget

    def run(self, script: str, **_: Any) -> Completed:
        if step := re.match(r"STEP=(\w+)", script):
            event = f"{self.name} {step[1]}"
            self.target.events.append(event)
            return Completed(int(event == self.target.failing), "", "it broke")
        line = f"NodeName={{}} State=IDLE Version={self.target.release}.5\n"
        return Completed(0, line.format("gpu-1") + line.format("gpu-2"), "")

    def put(self, path: str, data: bytes, mode: int = 0o644, owner: str = "root:root") -> None:
        raise NotImplementedError

    def get(self, _path: str) -> bytes:
        return SNAPSHOT.encode()

    def close(self) -> None: ...


@dataclass
class Site:
    """A stack with a running cluster on a recorded target."""

    target: RecordedTarget
    stack: StackHome

    @property
    def written_release(self) -> str:
        document = yaml.safe_load(self.stack.file.read_text())
        return str(document["config"]["muster:cluster"]["software"]["slurm"])


def make_site(folder: Path, monkeypatch: pytest.MonkeyPatch, release: str, failing: str = "") -> Site:
    data = {"name": "toy", "target": "local", "groups": {"gpu": {"count": 2}}, "software": {"slurm": release}}
    home = Home(repo=REPO, root=folder / "home", cache=folder / "cache", stacks=folder)
    (folder / "Pulumi.toy.yaml").write_text(yaml.safe_dump({"config": {"muster:cluster": data}}))
    target, stack = RecordedTarget(failing), home.stack("toy")
    stack.folder.mkdir(parents=True)
    cluster = command.Cluster(stack, load_spec(data), inventory(), target)
    monkeypatch.setattr(command, "_read_cluster", lambda _name: cluster)
    monkeypatch.setattr(command, "up", lambda *_, **__: target.events.append("up"))
    monkeypatch.setattr(pulumi, "wait_for_others", lambda *_, **__: None)
    return Site(target, stack)


def test_packages_come_before_the_pause_and_up_after_all_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site(tmp_path, monkeypatch, "24.11")
    command.upgrade("toy", to="26.05", drill=False)
    assert site.target.events == ["packages of 26.05", "hold", "controller backup", *CONTROL, *NODES, "up"]
    assert site.written_release == "26.05"


def test_a_controller_that_does_not_answer_stops_the_upgrade_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(tmp_path, monkeypatch, "24.11")

    def fail(*_: object) -> None:
        raise TransportError("controller", "Systems Manager does not reach it (ThrottlingException)")

    monkeypatch.setattr(RecordedTarget, "publish_packages", fail)
    with pytest.raises(Stop) as caught:
        command.upgrade("toy", to="26.05", drill=False)
    assert "Systems Manager does not reach it (ThrottlingException)" in caught.value.what
    assert "`make status STACK=toy`" in caught.value.fix
    assert site.target.events == []
    assert site.written_release == "24.11"


def test_a_failed_upgrade_ends_the_pause_and_continues_with_the_first_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(tmp_path, monkeypatch, "24.11", failing="gpu-1 node")
    with pytest.raises(Stop, match="the upgrade stopped: node gpu-1, step node: it broke"):
        command.upgrade("toy", to="26.05", drill=False)
    assert site.target.events[-2:] == ["gpu-1 node", "hold ends"]
    assert site.written_release == "24.11"
    assert (site.stack.folder / "upgrade-from-24.11.txt").read_text() == SNAPSHOT
    site.target.failing = ""
    command.upgrade("toy", to="26.05", drill=False)
    assert site.target.events[-2:] == ["login node", "up"]
    assert not (site.stack.folder / "upgrade-from-24.11.txt").exists()


def test_a_full_disk_leaves_the_stack_file_and_names_the_line_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(tmp_path, monkeypatch, "24.11")
    fill_disk(monkeypatch, site.stack.file)
    with pytest.raises(Stop, match=r"the cluster has Slurm 26.05, but .* could not be changed: .*No space") as stopped:
        command.upgrade("toy", to="26.05", drill=False)
    assert 'write `slurm: "26.05"`' in stopped.value.fix
    assert site.written_release == "24.11"


def test_a_return_restores_the_backup_before_the_packages_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(tmp_path, monkeypatch, "26.05")
    command.go_back("toy", to="24.11")
    assert site.target.events == ["packages of 24.11", "hold", "controller restore", *CONTROL, *NODES, "up"]
    assert site.written_release == "24.11"


def test_a_failed_return_launches_nothing_and_does_not_change_the_stack_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(tmp_path, monkeypatch, "26.05", failing="controller slurmctld")
    with pytest.raises(Stop, match="step slurmctld: it broke"):
        command.go_back("toy", to="24.11")
    assert site.target.events[-2:] == ["controller slurmctld", "hold is kept"]
    assert site.written_release == "26.05"
