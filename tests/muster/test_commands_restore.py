"""`muster restore`: which archive fits which cluster; `muster backup`: which target has archives."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bootstrap import state_backup
from cluster.spec import ClusterSpec
from infra import archive
from infra.archive import Manifest
from infra.controller_shell import ControllerShell
from infra.engine.stop import Stop
from infra.home import Home
from infra.targets.registry import load_spec
from muster.commands.restore import carry_out, find_mismatch
from slurm.control.named_jobs import LIST_RUNNING

MANIFEST = Manifest("2026-11-17T18:00:00+00:00", "0.1.0", "demo", "demo", "24.11", "", {"shared": 7})


def spec(slurm: str = "24.11") -> ClusterSpec:
    return load_spec({"name": "demo", "target": "local", "groups": {"cpu": {"count": 1}}, "software": {"slurm": slurm}})


@pytest.mark.parametrize(
    ("changes", "release", "expected"),
    [
        ({}, "24.11", ""),
        ({}, "26.05", ""),
        ({"cluster": "other"}, "24.11", "the archive is of cluster other, this cluster is demo"),
        (
            {"slurm": "26.05"},
            "24.11",
            "the archive is of Slurm 26.05, this cluster has 24.11, which reads: 24.11",
        ),
        (
            {"slurm": "27.11"},
            "26.05",
            "the archive is of Slurm 27.11, this cluster has 26.05, which reads: 24.11, 26.05",
        ),
        (
            {"storage": {"shared": 1, "data": 1}},
            "24.11",
            "the archive has files of storage data, this cluster has only shared",
        ),
    ],
)
def test_an_archive_must_fit_the_cluster(changes: dict[str, Any], release: str, expected: str) -> None:
    manifest = replace(MANIFEST, **changes)
    assert find_mismatch(manifest, manifest.storage, spec(release)) == expected


def test_without_files_other_storage_does_not_matter() -> None:
    manifest = replace(MANIFEST, storage={"data": 1})
    assert find_mismatch(manifest, {}, spec()) == ""


class BusyController(ControllerShell):
    """A controller on which a job starts while files are restored; it records the scripts that it is given."""

    scripts: ClassVar[list[str]] = []

    def run(self, script: str) -> str:
        self.scripts.append(script)
        return "7|1000|train\n" if script == LIST_RUNNING else ""

    def write(self, script: str, chunks: Iterable[bytes]) -> None:
        self.scripts.append(script)
        assert b"".join(chunks) == b"part"


@pytest.mark.parametrize(
    ("storage", "changes"),
    [
        ({"shared": 7}, "queue and accounting were not changed, files were restored"),
        ({}, "queue and accounting were not changed"),
    ],
)
def test_a_job_that_started_meanwhile_is_not_lost(
    storage: dict[str, int], changes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.tar"
    with archive.create_archive(path, lambda _: None) as writer:
        for name in (archive.CONTROLLER, archive.storage_part("shared")):
            writer.add(name, [b"part"])
        writer.finish(MANIFEST)
    scripts: list[str] = []
    monkeypatch.setattr(BusyController, "scripts", scripts)
    controller = BusyController(Home.of({"MUSTER_HOME": str(tmp_path)}).stack("demo"))
    with pytest.raises(Stop) as stop:
        carry_out(controller, path, MANIFEST, spec(), storage)
    assert stop.value.what == f"jobs are running, which a restore would lose: 7; {changes}"
    assert "scancel 7" in stop.value.fix
    assert scripts[-2:] == [state_backup.receive_state(), LIST_RUNNING]
