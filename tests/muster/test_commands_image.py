"""`muster image`: targets without images are refused, images in use stay, and a refresh replaces machines in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from infra.engine.stop import Stop
from infra.home import Home, StackHome
from infra.targets.aws.target import AwsTarget
from infra.targets.target import Deployment, MachineImage
from muster.commands import image
from slurm.control.jobs import EMPTYING
from tests.harness import REPO
from tests.infra.targets.aws.specs import good

GPU, PLAIN = "ami-00000000000000001", "ami-00000000000000002"
OLD = MachineImage("ami-00000000000000003", "gpu", "24.11", "ami-base", "2026-10-01")
BUILT = {
    "aws.plain_ami": MachineImage(PLAIN, "plain", "24.11", "ami-base", "2026-11-16"),
    "aws.ami": MachineImage(GPU, "gpu", "24.11", "ami-base", "2026-11-16"),
}


class Queue:
    """A queue in which one job ends while someone waits."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.left = [{"gpu-1": ["7"]}, {}]

    def drain(self, nodes: Sequence[str], reason: str) -> tuple[str, ...]:
        assert reason == EMPTYING, "the sweep would power idle nodes down, and launch them again from the old image"
        self.log.append(f"drain {' '.join(nodes)}")
        return tuple(nodes)

    def requeue(self, nodes: Sequence[str]) -> None:
        self.log.append(f"requeue {' '.join(nodes)}")

    def resume(self, nodes: Sequence[str]) -> None:
        self.log.append(f"resume {' '.join(nodes)}")

    def jobs(self, nodes: Sequence[str]) -> dict[str, list[str]]:
        self.log.append(f"wait for {' '.join(nodes)}")
        return self.left.pop(0)


@pytest.fixture
def stack(tmp_path: Path) -> StackHome:
    home = Home(repo=REPO, root=tmp_path / "home", cache=tmp_path, stacks=tmp_path)
    described = home.stack("s")
    described.folder.mkdir(parents=True)
    described.inventory.write_text("{}")
    described.file.write_text(yaml.safe_dump({"config": {"muster:cluster": good()}}))
    return described


@pytest.fixture
def log(stack: StackHome, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what a refresh does, with a target that acts on nothing."""
    steps: list[str] = []
    queue = Queue(steps)
    monkeypatch.setattr(AwsTarget, "queue", lambda *_: queue)
    monkeypatch.setattr(AwsTarget, "list_images", lambda *_: [*BUILT.values(), OLD])
    monkeypatch.setattr(AwsTarget, "end_machine", lambda _self, _deployment, node: steps.append(f"end {node}"))
    monkeypatch.setattr(image, "require_running_stack", lambda _name: stack)
    monkeypatch.setattr(image, "find_images_target", lambda _stack: (AwsTarget(), Deployment("demo", "s", "us-east-1")))
    monkeypatch.setattr(image, "build_images", lambda _stack: BUILT)
    monkeypatch.setattr(image, "time", SimpleNamespace(sleep=lambda _s: None))

    def up(_name: str, **_options: Any) -> None:
        named = [field for field in ("plain_ami", "ami") if f" {field}: ami-" in stack.file.read_text()]
        steps.append(f"up with {' '.join(named)}")

    monkeypatch.setattr(image, "up", up)
    return steps


def test_a_refresh_waits_for_jobs_and_replaces_the_controller_last(log: list[str]) -> None:
    image.refresh("s", force=False)
    assert log == [
        "up with plain_ami",
        "drain gpu-1 gpu-2",
        "wait for gpu-1 gpu-2",
        "wait for gpu-1 gpu-2",
        "up with plain_ami ami",
        "end login",
        "up with plain_ami ami",
        "end controller",
        "up with plain_ami ami",
    ]


@pytest.mark.usefixtures("log")
def test_a_refresh_names_the_images_that_it_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    image.refresh("s", force=False)
    printed = " ".join("".join(capsys.readouterr()).split())
    assert f"stack s no longer names {OLD.id}; " in printed


def test_a_forced_refresh_requeues_jobs(log: list[str]) -> None:
    image.refresh("s", force=True)
    assert log[1:3] == ["drain gpu-1 gpu-2", "requeue gpu-1 gpu-2"]


@pytest.mark.parametrize("cause", [KeyboardInterrupt(), Stop("no quota")])
def test_nodes_that_are_not_replaced_run_jobs_again(
    log: list[str], monkeypatch: pytest.MonkeyPatch, cause: BaseException
) -> None:
    def fail(_name: str, **_options: Any) -> None:
        if any(line.startswith("drain") for line in log):
            raise cause

    monkeypatch.setattr(image, "up", fail)
    with pytest.raises(type(cause)):
        image.refresh("s", force=True)
    assert log == ["drain gpu-1 gpu-2", "requeue gpu-1 gpu-2", "resume gpu-1 gpu-2"]


def test_an_image_that_the_stack_names_is_not_removed(stack: StackHome, monkeypatch: pytest.MonkeyPatch) -> None:
    stack.file.write_text(stack.file.read_text() + f"# {GPU}\n")
    monkeypatch.setattr(image, "require_stack", lambda _name: stack)
    monkeypatch.setattr(image, "find_images_target", lambda _stack: (AwsTarget(), Deployment("demo", "s", "us-east-1")))
    with pytest.raises(Stop, match=f"names '{GPU}', so nodes start from it"):
        image.remove("s", GPU)


def test_a_target_without_images_is_refused(stack: StackHome) -> None:
    spec = {"name": "demo", "target": "local", "groups": {"cpu": {"count": 1}}}
    stack.file.write_text(yaml.safe_dump({"config": {"muster:cluster": spec}}))
    with pytest.raises(Stop, match="target local, for which no images are built; allowed: aws"):
        image.find_images_target(stack)


def test_the_lines_for_the_stack_file_are_printed() -> None:
    text = image.describe_use("s", BUILT)
    assert f"aws.ami: {GPU}" in text
    assert f"aws.plain_ami: {PLAIN}" in text
