"""The receipt of each `teardown` in a rehearsal of errors: a missing or old receipt does not count as nothing left."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from cluster.spec import ClusterSpec
from infra.engine.stop import Stop
from infra.home import Home
from infra.targets.aws.rehearse.errors import failing_cluster
from infra.targets.aws.rehearse.errors.failing_cluster import FailingCluster
from infra.targets.aws.rehearse.moto_server import Moto

WHEN = "after a test"
Teardown = Callable[[Path], None]
"""Writes receipts to a folder."""


def write_receipt(folder: Path, name: str = "s-1.json", left: int = 0, time_ns: int = 1) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps({"left": left}))
    os.utime(folder / name, ns=(time_ns, time_ns))


def write_nothing(_folder: Path) -> None:
    pass


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FailingCluster:
    """Return a cluster whose state exists, and whose account has nothing of it."""
    home = Home.of({"MUSTER_HOME": str(tmp_path / "home"), "MUSTER_CACHE": str(tmp_path / "cache")})
    monkeypatch.setattr(FailingCluster, "list_left", lambda _self: set())
    monkeypatch.setattr(FailingCluster, "environment", lambda _self: {})
    cluster = FailingCluster(home.stack("s"), Moto(), cast(ClusterSpec, None))
    cluster.stack.state.parent.mkdir(parents=True, exist_ok=True)
    cluster.stack.state.touch()
    return cluster


def tear_down(cluster: FailingCluster, monkeypatch: pytest.MonkeyPatch, teardown: Teardown) -> None:
    def run_command(*_: object) -> int:
        teardown(cluster.stack.home.receipts)
        return 0

    monkeypatch.setattr(failing_cluster, "run_command", run_command)
    cluster.run("teardown", "--yes")
    cluster.require_nothing_left(WHEN)


def test_each_teardown_writes_a_receipt(cluster: FailingCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    tear_down(cluster, monkeypatch, write_receipt)
    # The second within a second replaces the first.
    tear_down(cluster, monkeypatch, lambda folder: write_receipt(folder, time_ns=2))
    with pytest.raises(Stop, match="after a test: `teardown` has to write one receipt; new are: none"):
        tear_down(cluster, monkeypatch, write_nothing)


def test_a_missing_receipt_is_refused(cluster: FailingCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Stop, match="new are: none"):
        tear_down(cluster, monkeypatch, write_nothing)


def test_several_receipts_are_refused(cluster: FailingCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_two(folder: Path) -> None:
        write_receipt(folder, "s-2.json")
        write_receipt(folder)

    with pytest.raises(Stop, match=r"new are: s-1\.json, s-2\.json"):
        tear_down(cluster, monkeypatch, write_two)


def test_what_the_new_receipt_says_counts(cluster: FailingCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    write_receipt(cluster.stack.home.receipts, "s-9.json", time_ns=9)
    with pytest.raises(Stop, match="the account has nothing, the receipt says 2 left"):
        tear_down(cluster, monkeypatch, lambda folder: write_receipt(folder, left=2))


def test_without_anything_to_remove_there_is_no_receipt(
    cluster: FailingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.stack.state.unlink()
    tear_down(cluster, monkeypatch, write_nothing)
