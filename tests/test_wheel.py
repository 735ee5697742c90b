"""The wheel contains every file of its packages and works without the repository."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = tuple(pattern.rstrip("*") for pattern in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"])

# Modules of the optional dependencies: `muster --help` and `check` of a cloud stack must work without them.
EXTRAS = (
    "pulumi",
    "pulumi_aws",
    "boto3",
    "botocore",
    "cryptography",
    "docker",
    "paramiko",
    "jinja2",
    "matplotlib",
    "numpy",
    "ruamel",
    "scipy",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy of the repository with the installed setuptools, without network."""
    copy, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in tracked_files():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check", "--quiet"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "-w", folder, copy], check=True)
    return next(folder.glob("muster-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Unpack the wheel into a folder that holds nothing else."""
    target = tmp_path_factory.mktemp("target")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def test_wheel_contains_every_file_of_its_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {name for name in tracked_files() if name.startswith(tuple(f"{package}/" for package in PACKAGES))}
    assert sorted(expected - packed) == [], "missing in the wheel: add the suffix to package-data in pyproject.toml"
    assert sorted(packed - expected) == []


def test_every_package_with_code_for_users_is_in_the_wheel() -> None:
    """Packages that need a checkout (setup, tests, benchmarks, policy, release) are not in the wheel."""
    with_code = {name.split("/")[0] for name in tracked_files() if name.endswith(".py") and "/" in name}
    assert with_code - {"setup", "tests", "benchmarks", "policy", "release", "examples", "docs"} == set(PACKAGES)


def test_build_uses_the_locked_setuptools() -> None:
    pin = PROJECT["build-system"]["requires"][0]
    assert pin in PROJECT["project"]["optional-dependencies"]["dev"]
    assert any(line.startswith(f"{pin} ") for line in (ROOT / "requirements.lock").read_text().splitlines())


def test_muster_prints_its_help(installed: Path, tmp_path: Path) -> None:
    assert "teardown" in run_muster(installed, tmp_path, "--help").stdout


def test_muster_checks_a_stack_with_the_data_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "stacks" / "Pulumi.aws-p5en-lustre.yaml", tmp_path)
    done = run_muster(installed, tmp_path, "check", "--stack", "aws-p5en-lustre")
    assert (done.returncode, "USD per hour" in done.stdout) == (0, True), done.stdout + done.stderr


def run_muster(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the wheel's console script without the repository, without its extras, and without cloud credentials."""
    entry_points = configparser.ConfigParser()
    entry_points.read(next(installed.glob("*.dist-info")) / "entry_points.txt")
    module, function = entry_points["console_scripts"]["muster"].split(":")
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({EXTRAS!r})); import {module}; sys.argv[0] = 'muster'; "
        f"assert {module}.__file__.startswith({str(installed)!r}), {module}.__file__; {module}.{function}()"
    )
    environment = {
        "HOME": str(folder),
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(installed),
        "MUSTER_STACKS": str(folder),
        "MUSTER_HOME": str(folder / "home"),
        "COLUMNS": "200",
    }
    argv = [sys.executable, "-P", "-c", program, *arguments]
    return subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True)


def tracked_files() -> Iterator[str]:
    """Yield the repository's files that still exist, without ignored ones."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    yield from (name for name in listed.stdout.splitlines() if (ROOT / name).is_file())
