"""`muster image`: targets without images are refused, and images in use stay."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from infra.engine.stop import Stop
from infra.home import Home, StackHome
from infra.targets.aws.fallback_images import store_fallbacks
from infra.targets.aws.target import AwsTarget
from infra.targets.mixins import MachineImage
from infra.targets.registry import load_spec
from infra.targets.target import Deployment
from muster.commands import image
from tests.harness import REPO
from tests.infra.targets.aws.specs import good

GPU, PLAIN = "ami-00000000000000001", "ami-00000000000000002"
BUILT = {
    "aws.plain_ami": MachineImage(PLAIN, "plain", "24.11", "ami-base", "2026-11-16"),
    "aws.ami": MachineImage(GPU, "gpu", "24.11", "ami-base", "2026-11-16"),
}


@pytest.fixture
def stack(tmp_path: Path) -> StackHome:
    home = Home(repo=REPO, root=tmp_path / "home", cache=tmp_path, stacks=tmp_path)
    described = home.stack("s")
    described.folder.mkdir(parents=True)
    described.inventory.write_text("{}")
    described.file.write_text(yaml.safe_dump({"config": {"muster:cluster": good()}}))
    return described


def test_an_image_that_the_stack_names_is_not_removed(stack: StackHome, monkeypatch: pytest.MonkeyPatch) -> None:
    stack.file.write_text(stack.file.read_text() + f"# {GPU}\n")
    monkeypatch.setattr(image, "require_stack", lambda _name: stack)
    monkeypatch.setattr(image, "find_images_target", lambda _stack: (AwsTarget(), Deployment("demo", "s", "us-east-1")))
    with pytest.raises(Stop, match=f"names '{GPU}', so nodes start from it"):
        image.remove("s", GPU)


@pytest.mark.parametrize("runs", ["24.11", "26.05"])
def test_nothing_is_built_for_a_file_that_the_cluster_cannot_have(
    stack: StackHome, monkeypatch: pytest.MonkeyPatch, runs: str
) -> None:
    """The file names no release, so it has the newest: the cluster may be from before a change of the default."""
    running = load_spec(good(software={"slurm": runs})).model_dump_json()
    guard = {"type": "pulumi-python:muster:ChangeGuard", "inputs": {"spec": running, "stack": "s"}}
    built: list[str] = []
    monkeypatch.setattr(image, "find_images_target", lambda _stack: (AwsTarget(), Deployment("demo", "s", "us-east-1")))
    monkeypatch.setattr(image.pulumi, "resources", lambda _stack: [guard])
    monkeypatch.setattr(AwsTarget, "queue", lambda *_: SimpleNamespace(release=lambda: runs))
    monkeypatch.setattr(AwsTarget, "build_images", lambda _self, spec, *_: built.append(spec.software.slurm))
    if runs == "26.05":
        image.build_images(stack)
        assert built == ["26.05"]
        return
    with pytest.raises(Stop, match=r'nothing was built[\s\S]*cannot change the release from "24\.11"') as stopped:
        image.build_images(stack)
    assert "make upgrade TO=26.05" in stopped.value.what
    assert built == []


def test_an_image_that_up_chose_is_neither_offered_for_removal_nor_removed(
    stack: StackHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_fallbacks(stack, {"gpu-x86_64": GPU})
    assert image.list_unused(stack, AwsTarget(), BUILT.values()) == [PLAIN]
    monkeypatch.setattr(image, "require_stack", lambda _name: stack)
    monkeypatch.setattr(image, "find_images_target", lambda _stack: (AwsTarget(), Deployment("demo", "s", "us-east-1")))
    with pytest.raises(Stop, match=f"nodes of stack s start from '{GPU}', which `up` chose for them"):
        image.remove("s", GPU)


def test_an_image_stays_if_an_invalid_file_hides_who_uses_it(stack: StackHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """A valid file may name other images, so that nothing starts from the chosen one; this one says nothing."""
    store_fallbacks(stack, {"gpu-x86_64": GPU})
    stack.file.write_text(yaml.safe_dump({"config": {"muster:cluster": good(grups={})}}))
    removed: list[str] = []
    monkeypatch.setattr(image, "require_stack", lambda _name: stack)
    monkeypatch.setattr(image, "find_images_target", lambda _stack: (AwsTarget(), Deployment("demo", "s", "us-east-1")))
    monkeypatch.setattr(AwsTarget, "remove_image", lambda _self, _deployment, id_: removed.append(id_))
    with pytest.raises(Stop) as stopped:
        image.remove("s", GPU)
    first, *others = stopped.value.what.splitlines()
    assert first == (
        f"image: {stack.file.name} is invalid, so nodes may start from '{GPU}', which `up` chose for them; nothing was "
        "removed"
    )
    assert "grups" in "\n".join(others)
    assert removed == []
    image.remove("s", PLAIN)
    assert removed == [PLAIN]


def test_a_target_without_images_is_refused(stack: StackHome, monkeypatch: pytest.MonkeyPatch) -> None:
    bare = SimpleNamespace(name="bare")
    monkeypatch.setattr(image, "find_deployment", lambda _stack: (bare, Deployment("demo", "s")))
    with pytest.raises(Stop, match="target bare, for which no images are built; allowed: aws, local"):
        image.find_images_target(stack)


def test_the_lines_for_the_stack_file_are_printed() -> None:
    text = image.describe_use("s", BUILT, AwsTarget.image_use)
    assert f"aws.ami: {GPU}" in text
    assert f"aws.plain_ami: {PLAIN}" in text
