"""`muster restore`: which archive fits which cluster; `muster backup`: which target has archives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.spec import ClusterSpec
from infra.archive import Manifest
from infra.targets.registry import load_spec
from muster.commands.restore import find_mismatch

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
