"""The programs of a Kubernetes cluster for tests: pinned, built once, and only with a Go that is new enough."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from setup import kubernetes, pins
from setup.paths import Paths
from setup.run import SetupError
from tests.e2e.kubernetes.requirements import find_lacking

REPO = Path(__file__).parents[2]
MODULES = REPO / "setup" / "kubernetes"


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    folder = tmp_path / "root" / "setup" / "kubernetes" / "cluster"
    folder.mkdir(parents=True)
    (folder / "go.sum").write_text("k8s.io/kubernetes v1.36.0 h1:abc=\n")
    return Paths(root=tmp_path / "root", cache=tmp_path / "cache")


def test_the_modules_are_of_the_pinned_version() -> None:
    text = (MODULES / "cluster" / "go.mod").read_text()
    minor = pins.KUBERNETES.removeprefix("1.")
    assert f"require k8s.io/kubernetes v{pins.KUBERNETES}\n" in text
    # The parts of Kubernetes have modules of their own, with the same numbers.
    assert set(re.findall(r"(?m)^\tk8s\.io/\S+ => k8s\.io/\S+ v(\S+)$", text)) == {f"0.{minor}"}
    for module in MODULES.iterdir():
        assert f"\ngo {pins.KUBERNETES_GO}\n" in (module / "go.mod").read_text()
        assert (module / "go.sum").stat().st_size > 1000
    assert f"require sigs.k8s.io/jobset v{pins.JOBSET}\n" in (MODULES / "jobset" / "go.mod").read_text()


def test_the_schemas_of_the_manifests_are_of_the_same_version() -> None:
    assert (REPO / "tests/k8s/schemas" / f"kubernetes-{pins.KUBERNETES}.json").exists()
    assert (REPO / "tests/k8s/schemas" / f"jobset-{pins.JOBSET}.json").exists()


def test_other_modules_have_another_place_in_the_cache(paths: Paths) -> None:
    before = kubernetes.locate(paths)
    assert before == kubernetes.locate(paths)
    (paths.root / "setup/kubernetes/cluster/go.sum").write_text("k8s.io/kubernetes v1.36.1 h1:abc=\n")
    assert kubernetes.locate(paths) != before


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_PROGRAMS", ("kube-apiserver",)),
        ("_JOBSET_MANIFESTS", ("crd",)),
        ("_UNPACKED_PACKAGES", ("etcd-server",)),
    ],
)
def test_other_programs_have_another_place_in_the_cache(
    name: str, value: object, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kubernetes.locate(paths)
    monkeypatch.setattr(kubernetes, name, value)
    assert kubernetes.locate(paths) != before


def test_nothing_is_built_again(paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubernetes.locate(paths).mkdir(parents=True)
    monkeypatch.setattr(kubernetes, "find_go", lambda: pytest.fail("looked for Go"))
    kubernetes.install(paths, tmp_path / "log")


@pytest.mark.parametrize("version", [None, "go1.25.11"])
def test_a_missing_or_old_go_is_refused(
    version: str | None, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = tmp_path / "go"
    go.write_text(f"#!/bin/sh\necho go version {version} linux/amd64\n")
    go.chmod(0o755)
    monkeypatch.setattr(kubernetes, "find_go", lambda: version and str(go))
    with pytest.raises(SetupError, match=re.escape(f"built with Go {pins.KUBERNETES_GO} or newer: install it")):
        kubernetes.install(paths, tmp_path / "log")
    assert not kubernetes.locate(paths).exists()


def test_a_user_other_than_root_is_refused_before_anything_runs(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for name in ("find_go", "ask", "run"):
        monkeypatch.setattr(kubernetes, name, lambda *_args, **_options: pytest.fail("ran a program"))
    with pytest.raises(SetupError, match="only root can update apt's lists of packages"):
        kubernetes.install(paths, tmp_path / "log")
    kubernetes.locate(paths).mkdir(parents=True)
    kubernetes.install(paths, tmp_path / "log")


def test_what_a_machine_lacks_is_named(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "ctr" else f"/usr/bin/{name}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert find_lacking(paths) == ["ctr", f"Kubernetes {pins.KUBERNETES}", "root"]
    kubernetes.locate(paths).mkdir(parents=True)
    assert find_lacking(paths) == ["ctr", "root"]
