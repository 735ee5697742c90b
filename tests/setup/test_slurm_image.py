"""The node image with the default release of Slurm: built unless another is asked for, and again after changes."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from cluster import names
from cluster.spec.model import SlurmRelease, Software
from setup import command, pins, slurm_image
from setup.paths import Paths
from setup.registry import Phase
from setup.run import SetupError
from tests.setup.machine import READY

LABELS = """#!/bin/sh
[ "$1 $2" = "image inspect" ] || exit 1
cat "{folder}/$5" 2>/dev/null || {{ echo "Error: No such image: $5" >&2; exit 1; }}
"""


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """Return paths of sources, with a stub `docker` that prints the labels in the file named after an image."""
    (tmp_path / "setup" / f"slurm-{pins.SLURM}").mkdir(parents=True)
    (tmp_path / "setup" / f"slurm-{pins.SLURM}" / "Dockerfile").write_text("FROM x")
    docker = tmp_path / "docker"
    docker.write_text(LABELS.format(folder=tmp_path))
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Paths(tmp_path, tmp_path)


def label(paths: Paths, image: str, value: str) -> None:
    (paths.root / image).write_text(f'{{"muster.hash": "{value}"}}')


def test_the_image_is_built_again_when_its_sources_or_its_base_change(paths: Paths) -> None:
    label(paths, pins.NODE_IMAGE, "base-1")
    assert not slurm_image.is_current(paths)
    label(paths, pins.SLURM_IMAGE, slurm_image._digest(paths))
    assert slurm_image.is_current(paths)
    label(paths, pins.NODE_IMAGE, "base-2")
    assert not slurm_image.is_current(paths)
    label(paths, pins.NODE_IMAGE, "base-1")
    (paths.root / "setup" / f"slurm-{pins.SLURM}" / "Dockerfile").write_text("FROM y")
    assert not slurm_image.is_current(paths)


@pytest.mark.parametrize(
    ("arguments", "built"),
    [
        ([], ["venv", "slurm"]),
        (["--slurm", "24.11"], ["venv"]),
        (["--slurm", "26.05"], ["venv", "slurm"]),
        (["venv"], ["venv"]),
        (["venv", "--slurm", "26.05"], ["venv", "slurm"]),
    ],
)
def test_the_image_is_built_unless_another_release_is_asked_for(
    arguments: list[str], built: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path))
    monkeypatch.setattr(command, "gather", lambda *_, **__: READY)

    def phase(name: str) -> Phase:
        return Phase(name, lambda *_: False, lambda *_: ran.append(name))

    monkeypatch.setattr(command, "PHASES", [phase("venv"), phase("slurm")])
    assert command.main(arguments) == 0
    assert sorted(ran) == sorted(built)


def test_a_failed_build_names_the_release_to_use_instead(paths: Paths) -> None:
    # The stub of `docker` fails to build.
    label(paths, pins.NODE_IMAGE, "base-1")
    with pytest.raises(SetupError, match=r"`software: \{slurm: \"24\.11\"\}`") as failure:
        slurm_image.build(paths, READY, paths.root / "log")
    assert "`docker build --force-rm` failed with exit code 1" in str(failure.value)


def test_an_unknown_release_is_rejected_with_the_allowed_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--slurm", "25.11"])
    assert "'25.11'" in (printed := capsys.readouterr().err)
    assert "24.11" in printed
    assert "26.05" in printed


def test_the_names_of_images_and_releases_are_those_of_the_clusters() -> None:
    assert get_args(SlurmRelease) == pins.SLURM_RELEASES
    assert Software().slurm == pins.SLURM
    assert {release: names.image(release) for release in pins.SLURM_RELEASES} == {
        "24.11": pins.NODE_IMAGE,
        pins.SLURM: pins.SLURM_IMAGE,
    }
