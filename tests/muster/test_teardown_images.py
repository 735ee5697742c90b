"""What teardown does about images: it forgets those that `up` chose, and lists those that were built and stay."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster import names
from infra.home import Home, StackHome
from infra.receipt import Receipt
from infra.targets.aws.fallback_images import read_fallbacks, store_fallbacks
from infra.targets.aws.target import AwsTarget
from infra.targets.local import docker_engine
from infra.targets.local.target import LocalTarget
from infra.targets.target import Deployment, Leftover, Leftovers, Target
from muster.commands import teardown

CHOSEN = {"gpu-x86_64": "ami-00000000000000001"}
KEPT = Leftover("machine image", "ami-00000000000000002", keep_reason="keep: true")
BUILT = f"{names.BAKED_IMAGE}:26.05-0123456789ab"

Remove = Callable[[Target, "list[str]"], Receipt]


@pytest.fixture
def stack(tmp_path: Path) -> StackHome:
    """Return a stack for which `up` chose images."""
    described = Home(repo=tmp_path, root=tmp_path / "home", cache=tmp_path, stacks=tmp_path).stack("s")
    store_fallbacks(described, CHOSEN)
    return described


@pytest.fixture
def remove(stack: StackHome, monkeypatch: pytest.MonkeyPatch) -> Remove:
    """Return teardown's removal of a cluster of which something is kept, so that the stack's folder stays."""

    def run(target: Target, failures: list[str]) -> Receipt:
        monkeypatch.setattr(teardown, "_destroy", lambda *_: failures)
        monkeypatch.setattr(type(target), "leftovers", lambda *_: Leftovers([KEPT]))
        # A size is measured of storage only, and this is none.
        monkeypatch.setattr(LocalTarget, "measure", lambda *_: None)
        return teardown._remove(teardown._Cluster(stack, target, Deployment("demo", "s")), [KEPT], 0)

    return run


def test_a_removed_cluster_starts_from_newest_images_the_next_time(stack: StackHome, remove: Remove) -> None:
    receipt = remove(AwsTarget(), [])
    assert read_fallbacks(stack) == {}
    assert stack.folder.exists()
    assert [item.name for item in receipt.items] == [KEPT.name]


def test_a_cluster_that_could_not_be_removed_stays_with_its_images(stack: StackHome, remove: Remove) -> None:
    receipt = remove(AwsTarget(), ["Pulumi: access denied"])
    assert read_fallbacks(stack) == CHOSEN
    assert "Pulumi: access denied" in receipt.notes


def test_a_target_that_chooses_no_images_has_none_to_forget(stack: StackHome, remove: Remove) -> None:
    before = sorted(stack.folder.iterdir())
    assert [item.name for item in remove(LocalTarget(), []).items] == [KEPT.name]
    assert sorted(stack.folder.iterdir()) == before


def test_the_receipt_lists_built_local_images_as_what_stays(
    stack: StackHome, remove: Remove, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(stack.home.root))
    row = {"RepoTags": [BUILT], "Labels": names.home_labels(stack.home.root), "Size": 7}
    engine = SimpleNamespace(
        images=lambda filters=None: [row] if filters else [],
        volumes=lambda: {"Volumes": None},
        containers=lambda **_: [],
    )
    monkeypatch.setattr(docker_engine, "api_session", lambda _where: nullcontext(engine))
    receipt = teardown.with_caches(remove(LocalTarget(), []), LocalTarget(), stack.home)
    assert [(cache.what, cache.name, cache.size) for cache in receipt.caches] == [
        ("built image (`muster image remove` deletes it)", BUILT, 7)
    ]
