"""`muster image refresh`: groups are replaced one after the other, the controller last, and a refresh can continue."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from infra.engine.stop import Stop
from infra.home import Home, StackHome
from infra.targets.aws.target import AwsTarget
from infra.targets.local.target import LocalTarget
from infra.targets.mixins import MachineImage
from infra.targets.target import Deployment
from muster.commands import image_refresh
from muster.commands.image_refresh import Replacement, plan_replacements, refresh
from slurm.control.jobs import EMPTYING
from tests.full_disk import fill_disk
from tests.harness import REPO
from tests.infra.targets.aws.specs import good

GPU, PLAIN = "ami-00000000000000001", "ami-00000000000000002"
OLD = MachineImage("ami-00000000000000003", "gpu", "24.11", "ami-base", "2026-10-01")
FOREIGN = "ami-00000000000000009"
BUILT = {
    "aws.plain_ami": MachineImage(PLAIN, "plain", "24.11", "ami-base", "2026-11-16"),
    "aws.ami": MachineImage(GPU, "gpu", "24.11", "ami-base", "2026-11-16"),
}
P5 = {"instance_type": "p5.48xlarge", "count": 1}
THREE_GROUPS = {"a": P5, "cpu": {"instance_type": "m7i.xlarge", "count": 1}, "b": P5}


class Queue:
    """A queue in which a job on the first drained nodes ends while someone waits."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.left: list[dict[str, list[str]]] = [{"gpu-1": ["7"]}]

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
        return self.left.pop() if self.left else {}


@pytest.fixture
def stack(tmp_path: Path) -> StackHome:
    home = Home(repo=REPO, root=tmp_path / "home", cache=tmp_path, stacks=tmp_path)
    described = home.stack("s")
    described.folder.mkdir(parents=True)
    described.inventory.write_text("{}")
    write(described)
    return described


def write(stack: StackHome, **changes: Any) -> None:
    # A copy of each group: YAML writes the same object twice as an anchor and an alias.
    stack.file.write_text(yaml.safe_dump({"config": {"muster:cluster": json.loads(json.dumps(good(**changes)))}}))


def read_images(stack: StackHome) -> str:
    """Return the images that the stack file names, each as PROPERTY=PURPOSE."""
    cluster = yaml.safe_load(stack.file.read_text())["config"]["muster:cluster"]
    titles = {GPU: "gpu", PLAIN: "plain", OLD.id: "old", FOREIGN: "foreign"}
    named = {field: cluster["aws"].get(field) for field in ("plain_ami", "ami")}
    named |= {name: group.get("image") for name, group in cluster["groups"].items()}
    return " ".join(f"{name}={titles[image]}" for name, image in named.items() if image)


@pytest.fixture
def log(stack: StackHome, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what a refresh does, with a target that acts on nothing."""
    steps: list[str] = []
    queue = Queue(steps)
    monkeypatch.setattr(AwsTarget, "queue", lambda *_: queue)
    monkeypatch.setattr(AwsTarget, "list_images", lambda *_: [*BUILT.values(), OLD])
    monkeypatch.setattr(AwsTarget, "end_machine", lambda _self, _deployment, node: steps.append(f"end {node}"))
    monkeypatch.setattr(image_refresh, "require_running_stack", lambda _name: stack)
    deployment = Deployment("demo", "s", "us-east-1")
    monkeypatch.setattr(image_refresh, "find_images_target", lambda _stack: (AwsTarget(), deployment))
    monkeypatch.setattr(image_refresh, "build_images", lambda _stack, **_options: BUILT)
    monkeypatch.setattr(image_refresh, "time", SimpleNamespace(sleep=lambda _s: None))
    monkeypatch.setattr(image_refresh, "up", lambda _name, **_options: steps.append(f"up with {read_images(stack)}"))
    return steps


@pytest.mark.attack(4)
def test_a_refresh_waits_for_jobs_and_replaces_the_controller_last(log: list[str]) -> None:
    refresh("s", force=False)
    assert log == [
        "up with plain_ami=plain",
        "drain gpu-1 gpu-2",
        "wait for gpu-1 gpu-2",
        "wait for gpu-1 gpu-2",
        "up with plain_ami=plain ami=gpu",
        "end login",
        "up with plain_ami=plain ami=gpu",
        "end controller",
        "up with plain_ami=plain ami=gpu",
    ]


def test_groups_that_share_an_image_are_replaced_one_after_the_other(stack: StackHome, log: list[str]) -> None:
    write(stack, groups=THREE_GROUPS, aws={"region": "us-east-1", "ami": OLD.id})
    refresh("s", force=True)
    assert log[:9] == [
        "drain cpu-1",
        "requeue cpu-1",
        "up with plain_ami=plain ami=old",
        "drain a-1",
        "requeue a-1",
        "up with plain_ami=plain ami=old a=gpu",
        "drain b-1",
        "requeue b-1",
        "up with plain_ami=plain ami=gpu",
    ]
    assert log[-2:] == ["end controller", "up with plain_ami=plain ami=gpu"]


def test_a_refresh_after_an_interrupted_one_replaces_every_group(stack: StackHome, log: list[str]) -> None:
    groups = THREE_GROUPS | {"a": {**P5, "image": OLD.id}}
    write(stack, groups=groups, aws={"region": "us-east-1"})
    refresh("s", force=True)
    assert log[3:9] == [
        "drain a-1",
        "requeue a-1",
        "up with plain_ami=plain a=gpu",
        "drain b-1",
        "requeue b-1",
        "up with plain_ami=plain ami=gpu",
    ]


def test_a_group_keeps_an_image_that_was_not_built_here(
    stack: StackHome, log: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    write(stack, groups=THREE_GROUPS | {"b": {**P5, "image": FOREIGN}})
    refresh("s", force=True)
    assert "drain b-1" not in log
    assert log[-1] == "up with plain_ami=plain ami=gpu b=foreign"
    printed = " ".join("".join(capsys.readouterr()).split())
    assert f"group b keeps {FOREIGN}, its own image" in printed
    assert "all other machines of stack s start from" in printed


def test_one_replacement_for_each_group() -> None:
    groups = {"aws.plain_ami": [], "aws.ami": ["a", "b", "c"]}
    assert plan_replacements({"aws.plain_ami": PLAIN, "aws.ami": GPU}, groups, keeping={"c": FOREIGN}) == [
        Replacement(PLAIN, "aws.plain_ami"),
        Replacement(GPU, "groups.a.image", "a"),
        Replacement(GPU, "aws.ami", "b", obsolete=("groups.a.image", "groups.b.image")),
    ]


@pytest.mark.usefixtures("log")
def test_a_refresh_names_the_images_that_it_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    refresh("s", force=False)
    printed = " ".join("".join(capsys.readouterr()).split())
    assert f"stack s no longer names {OLD.id}; " in printed


def test_a_forced_refresh_requeues_jobs(log: list[str]) -> None:
    refresh("s", force=True)
    assert log[1:3] == ["drain gpu-1 gpu-2", "requeue gpu-1 gpu-2"]


@pytest.mark.parametrize("cause", [KeyboardInterrupt(), Stop("no quota")])
def test_nodes_that_are_not_replaced_run_jobs_again(
    stack: StackHome, log: list[str], monkeypatch: pytest.MonkeyPatch, cause: BaseException
) -> None:
    write(stack, groups=THREE_GROUPS)

    def fail(_name: str, **_options: Any) -> None:
        if "drain b-1" in log:
            raise cause

    monkeypatch.setattr(image_refresh, "up", fail)
    with pytest.raises(type(cause)):
        refresh("s", force=True)
    assert log[-3:] == ["drain b-1", "requeue b-1", "resume b-1"]
    assert not any(line.startswith("end") for line in log)


ANCHORS = {"config": {"muster:cluster": good(groups={"a": P5, "b": P5})}}


def test_a_file_that_cannot_be_changed_is_refused_before_anything_is_built(
    stack: StackHome, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_refresh, "build_images", lambda *_, **__: log.append("build"))
    stack.file.write_text(yaml.safe_dump(ANCHORS))
    assert "b: *id001" in stack.file.read_text()
    with pytest.raises(Stop, match=r"cannot be changed: `a` has an anchor.*nothing was built") as stopped:
        refresh("s", force=True)
    assert "write the mappings of `groups.a.image` out there, without anchors" in str(stopped.value.fix)
    assert log == []


def test_a_file_that_cannot_be_changed_after_the_builds_leaves_the_nodes_in_use(
    stack: StackHome, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(_stack: StackHome, *, force: bool) -> dict[str, MachineImage]:
        assert force
        stack.file.write_text(yaml.safe_dump(ANCHORS))
        return BUILT

    monkeypatch.setattr(image_refresh, "build_images", build)
    with pytest.raises(Stop, match="could not be changed: `a` has an anchor") as stopped:
        refresh("s", force=True)
    assert f"write `groups.a.image: {GPU}` there" in str(stopped.value.fix)
    assert log[-3:] == ["drain a-1", "requeue a-1", "resume a-1"]


def test_a_full_disk_leaves_the_stack_file_and_the_nodes_in_use(
    stack: StackHome, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(stack, groups={"a": P5, "cpu": {"instance_type": "m7i.xlarge", "count": 1}})
    before = stack.file.read_text()
    fill_disk(monkeypatch, stack.file)
    with pytest.raises(Stop, match=r"could not be changed: .*No space left") as stopped:
        refresh("s", force=True)
    assert f"write `aws.plain_ami: {PLAIN}` there" in str(stopped.value.fix)
    assert stack.file.read_text() == before
    assert log == ["drain cpu-1", "requeue cpu-1", "resume cpu-1"]


def test_a_target_that_keeps_images_is_refused(
    stack: StackHome, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    local = (LocalTarget(), Deployment("demo", "s"))
    monkeypatch.setattr(image_refresh, "find_images_target", lambda _stack: local)
    with pytest.raises(Stop, match=r"stack s keeps the image .*; allowed: a stack of target aws$") as stopped:
        refresh(stack.name, force=False)
    assert "create the cluster again from it" in stopped.value.fix
    assert log == []
