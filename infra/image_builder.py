"""docker or podman on this machine: build an image from a Dockerfile, describe it, and export its files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from infra.archive import CHUNK

PROGRAMS = ("docker", "podman")


class BuilderError(Exception):
    """The program that builds images is missing or failed."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what, fix)
        self.what, self.fix = what, fix


@dataclass(frozen=True)
class BuiltImage:
    """An image that was built on this machine."""

    id: str
    architecture: str
    """As Go names it: amd64, arm64."""
    size: int
    """Bytes of its files, about."""
    environment: tuple[str, ...]
    folder: str


@dataclass(frozen=True)
class ImageBuilder:
    """docker or podman, which have the same commands."""

    program: str

    def build(self, dockerfile: Path, context: Path, arguments: Sequence[str]) -> BuiltImage:
        """Build an image and return it; the program's output goes to the terminal. Raise BuilderError if it fails."""
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / "id"
            options = [f"--file={dockerfile}", f"--iidfile={written}", *(f"--build-arg={each}" for each in arguments)]
            code = self._build([*options, str(context)])
            if code:
                what = f"`{self.program} build` failed with code {code}; its last lines say why"
                raise BuilderError(what, f"correct {dockerfile}, then build again")
            return self.describe(written.read_text().strip())

    def describe(self, image: str) -> BuiltImage:
        """Return an image of this machine."""
        described = json.loads(self._run("image", "inspect", image))[0]
        config = described.get("Config") or {}
        return BuiltImage(
            id=str(described["Id"]).removeprefix("sha256:"),
            architecture=str(described["Architecture"]),
            size=int(described["Size"]),
            environment=tuple(config.get("Env") or ()),
            folder=str(config.get("WorkingDir") or "/"),
        )

    def export(self, image: BuiltImage) -> Iterator[bytes]:
        """Yield the files of an image as a tar archive; raise BuilderError at the end if it is not complete."""
        container = self._run("create", image.id, "true").strip()
        try:
            with (
                tempfile.TemporaryFile() as err,
                subprocess.Popen([self.program, "export", container], stdout=subprocess.PIPE, stderr=err) as process,
            ):
                try:
                    while process.stdout and (chunk := process.stdout.read(CHUNK)):
                        yield chunk
                except BaseException:
                    process.kill()
                    raise
                if process.wait():
                    err.seek(0)
                    raise self._explain("export", err.read().decode(errors="replace"))
        finally:
            with suppress(BuilderError):
                self._run("rm", "--force", container)

    def _run(self, *arguments: str) -> str:
        done = subprocess.run([self.program, *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise self._explain(arguments[0], done.stderr)
        return done.stdout

    def _explain(self, command: str, error: str) -> BuilderError:
        lines = error.strip().splitlines() or ["no message"]
        return BuilderError(f"`{self.program} {command}` failed: {lines[-1]}", f"check `{self.program} info`")

    def _build(self, options: Sequence[str]) -> int:
        """Run the build and return its exit code; docker without its plugin for BuildKit uses its older builder."""
        if self._has_own_builder():
            return subprocess.run([self.program, "build", *options], check=False).returncode
        # Otherwise a step that fails leaves its container behind.
        line = [self.program, "build", "--force-rm", *options]
        environment = {**os.environ, "DOCKER_BUILDKIT": "0"}
        with subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True, errors="replace") as process:
            for text in drop_deprecation(process.stderr or ()):
                sys.stderr.write(text)
                sys.stderr.flush()
        return process.returncode

    def _has_own_builder(self) -> bool:
        if self.program != "docker" or "DOCKER_BUILDKIT" in os.environ:
            return True
        return not subprocess.run(["docker", "buildx", "version"], capture_output=True, check=False).returncode


def drop_deprecation(lines: Iterable[str]) -> Iterator[str]:
    """Yield docker's lines without its notice about DOCKER_BUILDKIT, which the user has not set."""
    in_notice = False
    for number, line in enumerate(lines):
        in_notice = (number == 0 and line.startswith("DEPRECATED:")) or in_notice
        if not in_notice:
            yield line
        in_notice = in_notice and bool(line.strip())


def find_builder() -> ImageBuilder:
    """Return the first builder that works here; raise BuilderError if there is none."""
    problems = []
    for program in PROGRAMS:
        if shutil.which(program) is None:
            problems.append(f"{program} is not installed")
            continue
        done = subprocess.run([program, "info"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return ImageBuilder(program)
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines() or ["no message"]
        problems.append(f"`{program} info` failed: {lines[-1]}")
    raise BuilderError(f"no program that builds images works here: {'; '.join(problems)}", "install docker or podman")
