"""The Ubuntu image of tests: a build that fails leaves no image behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.ubuntu_image import IMAGE, find_ubuntu_image

# `import` succeeds with an empty archive, too, as Docker does.
DOCKER = """#!/bin/sh
case "$1 $2" in
"image inspect") test -e {image} ;;
"image rm") rm {image}; echo "$3" >{removed} ;;
"run "*) cat >/dev/null; exit {code} ;;
"import "*) cat >/dev/null; touch {image} ;;
esac
"""


def write_docker(folder: Path, code: int) -> None:
    """Write a stub of docker whose containers end with an exit code."""
    tool = folder / "docker"
    tool.write_text(DOCKER.format(image=folder / "image", removed=folder / "removed", code=code))
    tool.chmod(0o755)


def test_an_image_whose_build_failed_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    write_docker(tmp_path, code=1)
    with pytest.raises(RuntimeError, match="debootstrap failed with exit code 1"):
        find_ubuntu_image()
    assert (tmp_path / "removed").read_text() == f"{IMAGE}\n"
    write_docker(tmp_path, code=0)
    assert find_ubuntu_image() == IMAGE
    assert (tmp_path / "image").exists()
