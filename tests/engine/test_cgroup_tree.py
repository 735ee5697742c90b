"""Groups that nodes leave in the host's cgroup2 tree are found and removed, whoever runs the command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from infra.providers import cgroup_tree, engine_client

CLUSTER = f"eng{os.getpid()}-groups"


def leave_groups() -> list[str]:
    """As two nodes would have left them; none on plain cgroup v2, where the engine removes them itself."""
    mounted = cgroup_tree._mounted()
    if engine_client.engine().cgroup_version > 1 or mounted is None:
        return []
    for group in ("a-1/init.scope", "a-1/system.slice/ssh.service", "a-2"):
        (Path(mounted) / "muster" / CLUSTER / group).mkdir(parents=True)
    return [f"muster/{CLUSTER}/a-1", f"muster/{CLUSTER}/a-2", f"muster/{CLUSTER}"]


@pytest.mark.parametrize("way", ["mounted", "not mounted", "not root"])
def test_groups_are_listed_and_removed(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left = leave_groups()
    if way == "not mounted":
        monkeypatch.setattr(cgroup_tree, "_mounted", lambda: None)
    if way == "not root":
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cgroup_tree.groups(CLUSTER) == left
    cgroup_tree.remove_node(CLUSTER, "a-1")
    assert cgroup_tree.groups(CLUSTER) == left[1:]
    cgroup_tree.remove_cluster(CLUSTER)
    assert cgroup_tree.groups(CLUSTER) == []
