"""Groups that nodes leave in the host's cgroup2 tree are listed and removed, with and without root.

Every host that can run nodes has a cgroup2 tree, hybrid or plain; the tests choose which one the engine reports.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.targets.local import cgroup_tree
from infra.targets.local import docker_engine as engine_client
from infra.targets.local.docker_engine import Engine

CLUSTER = f"eng{os.getpid()}-groups"
LEFTOVER_GROUPS = [f"muster/{CLUSTER}/a-1", f"muster/{CLUSTER}/a-2", f"muster/{CLUSTER}"]


@pytest.fixture
def tree() -> Iterator[Path]:
    """Return the host's tree with groups in it like those that two nodes leave."""
    mounted = cgroup_tree._mounted()
    assert mounted is not None, "this host has no cgroup2 tree mounted: nodes cannot run on it either"
    root = Path(mounted)
    for group in ("a-1/init.scope", "a-1/system.slice/ssh.service", "a-2"):
        (root / "muster" / CLUSTER / group).mkdir(parents=True)
    yield root
    own = root / "muster" / CLUSTER
    for folder in [*sorted(own.rglob("*/"), reverse=True), own]:
        if folder.is_dir():
            folder.rmdir()


@pytest.mark.parametrize("host", ["mounted", "not mounted", "not root"])
def test_groups_are_listed_and_removed(host: str, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "engine", lambda: Engine(cgroup_version=1, major=20))
    if host == "not mounted":
        monkeypatch.setattr(cgroup_tree, "_mounted", lambda: None)
    if host == "not root":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cgroup_tree.groups(CLUSTER) == LEFTOVER_GROUPS
    cgroup_tree.remove_node(CLUSTER, "a-1")
    assert cgroup_tree.groups(CLUSTER) == LEFTOVER_GROUPS[1:]
    cgroup_tree.remove_cluster(CLUSTER)
    assert cgroup_tree.groups(CLUSTER) == []
    assert not (tree / "muster" / CLUSTER).exists()


def test_cgroup_v2_tree_is_left_to_the_engine(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "engine", lambda: Engine(cgroup_version=2, major=28))
    cgroup_tree.remove_node(CLUSTER, "a-1")
    cgroup_tree.remove_cluster(CLUSTER)
    assert cgroup_tree.groups(CLUSTER) == []
    assert (tree / "muster" / CLUSTER / "a-1" / "init.scope").is_dir()
