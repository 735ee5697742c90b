"""`muster image job`: bad values are refused before anything is built, and a builder that fails is named."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from infra.engine.stop import BAD_INPUT, Stop
from infra.image_builder import BuilderError, ImageBuilder, find_builder
from muster.commands.image_job import check_input, check_space


@pytest.fixture
def dockerfile(tmp_path: Path) -> Path:
    path = tmp_path / "Dockerfile"
    path.write_text("FROM scratch\n")
    return path


def add_program(folder: Path, name: str, script: str) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_valid_input_is_accepted(dockerfile: Path) -> None:
    check_input(dockerfile, "my-model.v2_1", dockerfile.parent, ["BASE=debian:trixie", "EMPTY="])


@pytest.mark.parametrize("name", ["", "A", "a/b", "../a", ".hidden", "-a", "a b", "a" * 64])
def test_a_name_that_is_no_plain_file_name_is_refused(dockerfile: Path, name: str) -> None:
    with pytest.raises(Stop, match=f"--name: '{name}' is not allowed") as stop:
        check_input(dockerfile, name, None, [])
    assert stop.value.code == BAD_INPUT
    assert "lowercase letters, digits" in stop.value.fix


@pytest.mark.parametrize(
    ("given", "context", "arguments", "problem", "fix"),
    [
        ("none", None, [], "none is not a file", "name an existing Dockerfile"),
        (".", None, [], "is not a file", "name the file: .*/Dockerfile"),
        ("Dockerfile", "none", [], "--context: .*none is not a folder", "the folder that COPY reads from"),
        ("Dockerfile", None, ["A=1", "B"], "--build-arg: 'B' is not NAME=VALUE", "BASE=debian:trixie"),
    ],
)
def test_what_cannot_be_built_is_refused(
    dockerfile: Path, given: str, context: str | None, arguments: Sequence[str], problem: str, fix: str
) -> None:
    folder = dockerfile.parent
    with pytest.raises(Stop, match=problem) as stop:
        check_input(folder / given, "a", folder / context if context else None, arguments)
    assert stop.value.code == BAD_INPUT
    assert re.search(fix, stop.value.fix)


def test_an_image_that_does_not_fit_is_refused_before_it_is_copied() -> None:
    check_space(5, 5, "/shared")
    with pytest.raises(Stop, match=r"/shared has 4 MB free, the image needs 5\.0 GB; nothing was copied"):
        check_space(4_000_000, 5_000_000_000, "/shared")


def test_without_a_builder_the_error_names_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    add_program(tmp_path, "podman", "echo 'cannot open /run/user' >&2; exit 125")
    with pytest.raises(BuilderError) as error:
        find_builder()
    expected = (
        "no program that builds images works here: docker is not installed; `podman info` failed: cannot open /run/user"
    )
    assert error.value.what == expected
    assert error.value.fix == "install docker or podman"


def test_podman_is_used_where_docker_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    add_program(tmp_path, "docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    add_program(tmp_path, "podman", "exit 0")
    assert find_builder() == ImageBuilder("podman")


def test_a_dockerfile_that_does_not_build_is_named(
    dockerfile: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    add_program(tmp_path, "podman", "exit 2")
    with pytest.raises(BuilderError, match="`podman build` failed with code 2") as error:
        ImageBuilder("podman").build(dockerfile, tmp_path, ())
    assert str(dockerfile) in error.value.fix


NOTICE = """DEPRECATED: The legacy builder is deprecated and will be removed in a future release.
            BuildKit is currently disabled; enable it by removing the DOCKER_BUILDKIT=0
            environment-variable.

"""


def test_the_older_builder_leaves_no_container_and_no_notice_about_a_variable_of_ours(
    dockerfile: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("DOCKER_BUILDKIT", raising=False)
    (tmp_path / "notice").write_text(NOTICE)
    script = f"""
[ "$1" = build ] || exit 1
echo "$DOCKER_BUILDKIT $*" >{tmp_path}/given
cat {tmp_path}/notice >&2
echo 'RUN false returned 1' >&2
exit 1"""
    add_program(tmp_path, "docker", script)
    with pytest.raises(BuilderError, match="failed with code 1"):
        ImageBuilder("docker").build(dockerfile, tmp_path, ())
    assert (tmp_path / "given").read_text().startswith("0 build --force-rm ")
    assert capfd.readouterr().err == "RUN false returned 1\n"
