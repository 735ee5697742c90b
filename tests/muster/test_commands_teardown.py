"""`muster teardown` without a stack file finds real Docker objects by label."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from cluster import names
from infra.home import Home

pytestmark = pytest.mark.engine

REPO = Path(__file__).parents[2]
STACK, CLUSTERS = "unwritten", ("unwritten-a", "unwritten-b")


@pytest.fixture(autouse=True)
def _no_leftovers() -> Iterator[None]:
    _remove()
    yield
    _remove()


def _remove() -> None:
    client = docker.from_env()
    for cluster in CLUSTERS:
        for volume in client.volumes.list(filters={"label": f"{names.CLUSTER}={cluster}"}):
            volume.remove(force=True)


def create_volume(cluster: str, stack: str = STACK, *, keep: bool = False) -> str:
    labels = names.labels(cluster, stack, "2026-01-01T00:00:00+00:00") | ({names.KEEP: "true"} if keep else {})
    return str(docker.from_env().volumes.create(names.volume(cluster, "shared"), labels=labels).name)


def volumes() -> list[str]:
    filters = {"label": [names.CLUSTER]}
    return [v.name for v in docker.from_env().volumes.list(filters=filters) if "unwritten" in v.name]


def teardown(home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return muster(home, "teardown", *options)


def muster(home: Path, command: str, *options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "MUSTER_HOME": str(home), "MUSTER_STACKS": str(home / "stacks")}
    line = [sys.executable, "-m", "muster.cli", command, "--stack", STACK, *options]
    return subprocess.run(line, cwd=REPO, env=env, text=True, capture_output=True, stdin=subprocess.DEVNULL)


def test_labelled_resources_are_removed_with_a_receipt(tmp_path: Path) -> None:
    volume = create_volume(CLUSTERS[0])
    done = teardown(tmp_path, "--yes")
    assert done.returncode == 0, done.stderr
    assert volume in done.stdout
    assert "nothing of cluster unwritten-a is left" in done.stdout
    assert "make clean-cache" in done.stdout
    assert volumes() == []
    (saved,) = (tmp_path / "receipts").glob("*.json")
    receipt = json.loads(saved.read_text())
    assert (receipt["cluster"], receipt["removed"], receipt["left"]) == (CLUSTERS[0], 1, 0)
    assert receipt["items"][0]["created"] == "2026-01-01T00:00:00+00:00"


def test_kept_storage_stays_until_its_deletion_is_requested(tmp_path: Path) -> None:
    volume = create_volume(CLUSTERS[0], keep=True)
    done = teardown(tmp_path, "--yes")
    assert done.returncode == 0, done.stderr
    assert volumes() == [volume]
    assert re.search(rf"kept \(keep: true\).*{volume}.*\d [kM]?B", done.stdout)
    assert f"to remove it too: `make teardown DELETE_STORAGE=1 STACK={STACK}`" in done.stdout
    assert "only kept resources of cluster unwritten-a are left" in done.stdout
    (saved,) = (tmp_path / "receipts").glob("*.json")
    receipt = json.loads(saved.read_text())
    assert (receipt["removed"], receipt["left"], receipt["stays"]) == (0, 0, 1)
    assert receipt["items"][0]["size"] > 0
    done = teardown(tmp_path, "--yes", "--delete-storage")
    assert done.returncode == 0, done.stderr
    assert "nothing of cluster unwritten-a is left" in done.stdout
    assert volumes() == []


def test_deletion_of_storage_needs_confirmation(tmp_path: Path) -> None:
    volume = create_volume(CLUSTERS[0], keep=True)
    done = teardown(tmp_path, "--delete-storage")
    assert (done.returncode, "--yes" in done.stderr) == (1, True)
    assert volumes() == [volume]


def test_unknown_stack_is_an_error(tmp_path: Path) -> None:
    done = teardown(tmp_path, "--yes")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{tmp_path}/stacks/Pulumi.{STACK}.yaml does not exist" in done.stderr


def test_nothing_to_remove_is_not_a_failure(tmp_path: Path) -> None:
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / f"Pulumi.{STACK}.yaml").write_text("config: {}\n")
    done = teardown(tmp_path, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert "nothing to remove" in done.stdout


@pytest.mark.parametrize("exists", [True, False])
def test_nothing_is_removed_while_pulumi_runs(tmp_path: Path, exists: bool) -> None:
    expected = [create_volume(CLUSTERS[0])] if exists else []
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack(STACK)
    stack.pulumi_locks.mkdir(parents=True)
    running = {"pid": os.getpid(), "hostname": socket.gethostname(), "timestamp": "2026-11-15T03:14:13.12409786Z"}
    (stack.pulumi_locks / "a.json").write_text(json.dumps(running))
    done = teardown(tmp_path, "--yes")
    assert done.returncode == 1
    assert f"process {os.getpid()}" in done.stderr
    assert volumes() == expected


def test_orphaned_state_is_removed(tmp_path: Path) -> None:
    state = Home.of({"MUSTER_HOME": str(tmp_path)}).stack(STACK).state
    state.parent.mkdir(parents=True)
    state.write_text("{}")
    done = teardown(tmp_path, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert not state.exists()
    assert not (tmp_path / STACK).exists()


def test_ambiguous_stack_is_an_error(tmp_path: Path) -> None:
    created = [create_volume(cluster) for cluster in CLUSTERS]
    done = teardown(tmp_path, "--yes")
    assert done.returncode == 1
    assert all(cluster in done.stderr for cluster in CLUSTERS)
    assert sorted(volumes()) == sorted(created)


def test_nothing_is_removed_without_confirmation(tmp_path: Path) -> None:
    volume = create_volume(CLUSTERS[0])
    done = teardown(tmp_path)
    assert done.returncode == 1
    assert "--yes" in done.stderr
    assert volumes() == [volume]


def test_cluster_of_another_stack_is_kept(tmp_path: Path) -> None:
    volume = create_volume(CLUSTERS[0], stack="somebody-else")
    (tmp_path / "stacks").mkdir()
    spec = f"{{name: {CLUSTERS[0]}, target: local, groups: {{cpu: {{count: 1}}}}}}"
    (tmp_path / "stacks" / f"Pulumi.{STACK}.yaml").write_text(f"config: {{'muster:cluster': {spec}}}\n")
    done = teardown(tmp_path, "--yes")
    assert done.returncode == 0
    assert "nothing to remove" in done.stdout
    assert volumes() == [volume]


@pytest.mark.parametrize("command", ["check", "up"])
def test_name_of_another_stacks_cluster_is_rejected_once(tmp_path: Path, command: str) -> None:
    (tmp_path / "stacks").mkdir()
    spec = f"{{name: {CLUSTERS[0]}, target: local, groups: {{cpu: {{count: 1}}}}}}"
    (tmp_path / "stacks" / f"Pulumi.{STACK}.yaml").write_text(f"config: {{'muster:cluster': {spec}}}\n")
    labels = names.labels(CLUSTERS[0], "somebody-else", "2026-01-01T00:00:00+00:00")
    network = docker.from_env().networks.create(names.network(CLUSTERS[0]), labels=labels, internal=True)
    try:
        done = muster(tmp_path, command)
    finally:
        network.remove()
    assert done.returncode == 1
    assert done.stderr.count("belongs to stack somebody-else") == 1
    assert not (tmp_path / STACK).exists()
