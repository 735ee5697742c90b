"""Images of local nodes: which a cluster starts from, and what of them is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import ImageNotFound

from bootstrap.bake import plan_image
from bootstrap.facts.model import Facts
from bootstrap.image_contents import ImageContents
from bootstrap.steps.packages import BY_ROLE, COMMON
from cluster import names
from cluster.spec.issue import SpecError
from infra.home import Home
from infra.resources.error import ResourceError
from infra.targets.local import caches, docker_engine, images, plan
from infra.targets.local.target import LocalTarget
from infra.targets.mixins import HostFacts, MachineImage
from infra.targets.registry import load_spec
from infra.targets.target import Deployment
from infra.validate import validate
from infra.validate.update import violations
from tests.infra.test_update_policy import idle

IMAGE = f"{names.BAKED_IMAGE}:24.11-0123456789ab"
OTHER, NEWER = f"{names.BAKED_IMAGE}:24.11-ba9876543210", f"{names.BAKED_IMAGE}:26.05-0123456789ab"
HOST = HostFacts(cpus=64, memory_mb=500_000)
CONTENTS = ImageContents(roles=("controller", "login", "compute"), slurm="24.11", cloud=False)


def spec(image: str | None = IMAGE, release: str = "24.11") -> Any:
    described: dict[str, Any] = {"name": "toy", "target": "local", "groups": {"cpu": {"count": 1}}}
    described["software"] = {"slurm": release}
    return load_spec(described | ({"local": {"image": image}} if image else {}))


def test_nodes_start_from_the_image_that_the_spec_names() -> None:
    assert plan.plan(spec()).image == IMAGE
    assert plan.plan(spec(None)).image == names.image("24.11")


@pytest.mark.parametrize("image", ["muster-node:24.11", "ubuntu", f"{names.BAKED_IMAGE}:24.11", IMAGE[:-1]])
def test_only_built_images_are_allowed(image: str) -> None:
    with pytest.raises(SpecError, match=r"local\.image[\s\S]*an image that `muster image build` has built"):
        spec(image)


def test_an_image_with_another_release_is_an_error() -> None:
    assert [issue.code for issue in LocalTarget().validate(spec())] == []
    (issue,) = LocalTarget().validate(spec(release="26.05"))
    assert (issue.level, issue.code, issue.where) == ("error", "image_slurm", "local.image")
    assert issue.message == f"'{IMAGE}' has Slurm 24.11; software.slurm is 26.05"
    assert issue.fix == (
        'name one that `muster image list` shows for Slurm 26.05, or write `software: {slurm: "24.11"}`'
    )
    (issue,) = LocalTarget().validate(spec(IMAGE.replace("24.11", "23.02"), release="26.05"))
    assert issue.fix == "name one that `muster image list` shows for Slurm 26.05"


@pytest.mark.parametrize(
    ("built", "allowed"),
    [
        ((OTHER, NEWER), OTHER),
        ((NEWER,), "none for Slurm 24.11"),
        ((), "none for Slurm 24.11"),
    ],
)
def test_an_image_that_does_not_exist_is_an_error(built: tuple[str, ...], allowed: str) -> None:
    (issue,) = validate(spec(), replace(HOST, images=built))
    assert (issue.level, issue.code, issue.where) == ("error", "image_missing", "local.image")
    assert issue.message == f"'{IMAGE}' does not exist on this machine; allowed: {allowed}"
    assert issue.fix == (
        "build one with `muster image build` and name it, or remove the property to use the image of `make setup`"
    )


def test_an_image_that_exists_or_could_not_be_looked_up_is_no_error() -> None:
    assert validate(spec(), replace(HOST, images=(OTHER, IMAGE))) == []
    assert validate(spec(None), replace(HOST, images=())) == []
    assert validate(spec(), HOST) == []


def test_facts_of_this_machine_have_the_tested_images_of_all_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    rows: list[dict[str, Any]] = [
        {"RepoTags": [NEWER, IMAGE], "Labels": names.home_labels(tmp_path) | {names.CLUSTER: "toy"}},
        {"RepoTags": [OTHER, f"{OTHER}-untested"], "Labels": names.home_labels(tmp_path / "other")},
        {"RepoTags": None, "Labels": None},
    ]

    def list_images(filters: dict[str, str]) -> list[dict[str, Any]]:
        assert filters == {"reference": names.BAKED_IMAGE}
        return rows

    engine = SimpleNamespace(info=lambda: {"NCPU": 2, "MemTotal": 2**30}, images=list_images)
    monkeypatch.setattr(docker_engine, "connect", lambda: engine)
    assert LocalTarget().host_facts() == HostFacts(cpus=2, memory_mb=1024, images=(IMAGE, OTHER, NEWER))


def test_a_cluster_keeps_its_image() -> None:
    assert [issue.code for issue in violations(spec(None), spec(), idle, force=True)] == ["forbidden_change"]
    with pytest.raises(ResourceError, match=r"local\.image: .* has Slurm 24\.11, and a cluster keeps its image"):
        LocalTarget().check_release(spec(), Home.of({}).stack("s"), "26.05")


def test_an_image_gets_what_nodes_of_all_roles_need_and_nothing_of_clouds() -> None:
    required = {*COMMON, *(name for names_ in BY_ROLE.values() for name in names_)}
    (step,) = plan_image(Facts(distribution="debian 13", packages=dict.fromkeys(required, "24.11.5-1")), CONTENTS)
    assert (step.step.name, step.actions) == ("packages", ())
    (step,) = plan_image(
        Facts(distribution="debian 13", packages=dict.fromkeys(required - {"sudo"}, "24.11")), CONTENTS
    )
    assert [action.title for action in step.actions] == ["install sudo"]


class Engine:
    """The images of a Docker engine, as labels by tag; a commit adds one, and is interrupted if told so."""

    def __init__(self, labels: dict[str, str]) -> None:
        self.tags: dict[str, dict[str, str]] = {}
        self._labels = labels
        self.interrupted = False

    def inspect_image(self, name: str) -> dict[str, str]:
        if name != names.image("24.11"):
            raise ImageNotFound(name)
        return {"Id": "sha256:base"}

    def images(self, filters: dict[str, Any]) -> list[dict[str, Any]]:
        assert filters["label"] == [f"{names.CLUSTER}=toy"]
        return [{"RepoTags": [tag], "Labels": labels} for tag, labels in self.tags.items()]

    def stop(self, _container: str, **_options: Any) -> None:
        pass

    def commit(self, _container: str, repository: str, tag: str, changes: list[str]) -> None:
        own = dict(change.removeprefix("LABEL ").replace('"', "").split("=", 1) for change in changes)
        self.tags[f"{repository}:{tag}"] = self._labels | own
        if self.interrupted:
            raise KeyboardInterrupt

    def tag(self, image: str, repository: str, tag: str) -> None:
        self.tags[f"{repository}:{tag}"] = self.tags[image]

    def remove_image(self, tag: str, *, force: bool) -> None:
        assert force
        del self.tags[tag]


def test_built_images_are_listed_as_what_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    foreign = f"{names.BAKED_IMAGE}:24.11-ba9876543210"
    rows = {
        names.image("24.11"): {},
        IMAGE: names.home_labels(tmp_path),
        foreign: names.home_labels(tmp_path / "other"),
    }
    removed: list[str] = []

    def list_images(filters: dict[str, str] | None = None) -> list[dict[str, Any]]:
        repository = filters["reference"] if filters else ""
        tags = [tag for tag in rows if not filters or tag.startswith(f"{repository}:")]
        return [{"RepoTags": [tag], "Labels": rows[tag], "Size": 7} for tag in tags]

    engine = SimpleNamespace(
        images=list_images,
        volumes=lambda: {"Volumes": None},
        containers=lambda **_: [],
        remove_image=lambda tag, **_: removed.append(tag),
    )
    monkeypatch.setattr(docker_engine, "api_session", lambda _where: nullcontext(engine))
    home = Home(repo=tmp_path, root=tmp_path, cache=tmp_path / "none", stacks=tmp_path)
    node, built = caches.caches(home)
    assert (node.what, node.name) == ("node image", names.image("24.11"))
    assert (built.what, built.name, built.size) == ("built image (`muster image remove` deletes it)", IMAGE, 7)
    assert caches.drop(home) == (node,)
    assert removed == [names.image("24.11")]


class Build:
    """Builds of an image on an engine without containers."""

    def __init__(self, engine: Engine, home: Home) -> None:
        self.engine, self.home, self.lines = engine, home, list[str]()

    def run(self) -> MachineImage:
        console: Any = SimpleNamespace(say=self.lines.append, status=lambda _text: nullcontext())
        return images.build_image("24.11", self.home, Deployment("toy", "s"), console)


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    engine = Engine({names.CLUSTER: "toy"} | names.home_labels(tmp_path))

    @contextmanager
    def open_session(_where: str) -> Iterator[Engine]:
        yield engine

    monkeypatch.setattr(docker_engine, "api_session", open_session)
    monkeypatch.setattr(images, "_machine", lambda *_: nullcontext())
    monkeypatch.setattr(images, "_install", lambda *_: {"slurmd": "24.11.5-1"})
    monkeypatch.setattr(images, "_check", lambda *_: None)
    return Build(engine, Home(repo=tmp_path, root=tmp_path, cache=tmp_path, stacks=tmp_path))


def test_an_image_with_the_same_contents_stays_as_it_is(build: Build) -> None:
    first = build.run()
    (tag,) = build.engine.tags
    labels = build.engine.tags[tag]
    again = build.run()
    assert again == first
    assert build.engine.tags == {tag: labels}
    assert build.engine.tags[tag] is labels, "nodes that run from the image would run from one without a tag"
    assert f"image {first.id} exists already" in build.lines[-1]


def test_an_interrupted_build_leaves_no_image(build: Build) -> None:
    build.engine.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        build.run()
    assert build.engine.tags == {}


def test_a_build_removes_what_one_that_was_killed_left(build: Build) -> None:
    left = f"{IMAGE}-untested"
    build.engine.tags[left] = names.home_labels(build.home.root) | {names.CLUSTER: "toy"}
    image = build.run()
    assert list(build.engine.tags) == [image.id]
    assert f"removed the image {left} of an earlier build" in build.lines[0]


def test_an_image_that_another_checkout_builds_stays(build: Build, tmp_path: Path) -> None:
    left = f"{IMAGE}-untested"
    build.engine.tags[left] = names.home_labels(tmp_path / "other") | {names.CLUSTER: "toy"}
    image = build.run()
    assert set(build.engine.tags) == {image.id, left}
