"""The trainer's image for tests: its base has the authorities of this machine, and nothing else of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from setup import pins, trainer_image
from setup.paths import Paths

DOCKER = """#!/bin/sh
echo "$DOCKER_BUILDKIT $*" >>calls
case "$*" in
"image inspect -f {{json .Config.Labels}} muster-trainer-base:1") cat labels ;;
"image inspect -f {{index"*) echo debootstrap ;;
"image inspect"*) exit 0 ;;
build*-) tar -t >context ;;
esac
"""


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "labels").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return Paths(root=tmp_path, cache=tmp_path / "cache")


def test_the_base_has_the_additional_authorities_of_this_machine(tmp_path: Path, paths: Paths) -> None:
    (tmp_path / "company.crt").write_text("certificate")
    (tmp_path / "notes.txt").write_text("other")
    assert set(trainer_image.base_context(paths, tmp_path)) == {"Dockerfile", "ca-certificates/company.crt"}


def test_the_image_is_built_on_that_base(tmp_path: Path, paths: Paths) -> None:
    trainer_image.build(paths, tmp_path / "log")
    base, image = [line for line in (tmp_path / "calls").read_text().splitlines() if line.startswith("0 build ")]
    assert f" -t {pins.TRAINER_BASE_IMAGE} -" in base
    assert "Dockerfile" in (tmp_path / "context").read_text().split()
    assert f" --build-arg BASE={pins.TRAINER_BASE_IMAGE} " in image
    assert image.endswith(f" -t {pins.TRAINER_IMAGE} {tmp_path}/trainer")


def test_a_base_that_is_current_is_not_built_again(tmp_path: Path, paths: Paths) -> None:
    trainer_image.build(paths, tmp_path / "log")
    built = (tmp_path / "calls").read_text()
    digest = built.partition("muster.hash=")[2].split()[0]
    (tmp_path / "labels").write_text(f'{{"muster.hash": "{digest}"}}')
    (tmp_path / "calls").unlink()
    trainer_image.build(paths, tmp_path / "log")
    assert (tmp_path / "calls").read_text().count(" build ") == 1
