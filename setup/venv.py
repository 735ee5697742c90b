"""The repository's virtual environment: the packages of requirements.lock, and muster itself in editable mode."""

import hashlib
import json
import shutil
import sys
from pathlib import Path

from setup.facts import Facts
from setup.paths import Paths
from setup.run import run

STAMP = "muster.json"
# Packages are not byte-compiled: Python compiles the small part that it imports on first use.
OPTIONS = ("--progress-bar", "off", "--disable-pip-version-check", "--no-compile")


def expected_stamp(paths: Paths) -> dict[str, str]:
    """Return digests of what the environment depends on: lock file, Python, location, and the project file.

    The location is included because the environment's programs contain it: a copy would run the original's code.
    """
    lock = (paths.root / "requirements.lock").read_bytes()
    python = f"{sys.base_prefix} {sys.version_info.major}.{sys.version_info.minor} {paths.root}"
    return {
        "packages": hashlib.sha256(lock + python.encode()).hexdigest(),
        "project": hashlib.sha256((paths.root / "pyproject.toml").read_bytes()).hexdigest(),
    }


def is_current(paths: Paths) -> bool:
    """Return whether the environment is complete and up to date."""
    return read_stamp(paths) == expected_stamp(paths)


def read_stamp(paths: Paths) -> dict[str, str]:
    """Return the digests of the last finished installation, empty if there is none."""
    try:
        content = json.loads((paths.venv / STAMP).read_text())
    except (OSError, ValueError):
        return {}
    return content if (paths.venv / "bin" / "python").exists() else {}


def install(paths: Paths, _: Facts, log: Path) -> None:
    """Create the environment; if only the project file changed, install only muster again."""
    target = expected_stamp(paths)
    python = paths.venv / "bin" / "python"
    current = read_stamp(paths)
    (paths.venv / STAMP).unlink(missing_ok=True)
    if current.get("packages") != target["packages"]:
        shutil.rmtree(paths.venv, ignore_errors=True)
        run([base_python(), "-m", "venv", paths.venv], log)
        run([python, "-m", "pip", "install", *OPTIONS, "--require-hashes", "-r", paths.root / "requirements.lock"], log)
    run([python, "-m", "pip", "install", *OPTIONS, "--no-deps", "--no-build-isolation", "-e", paths.root], log)
    unfinished = paths.venv / f"{STAMP}.new"
    unfinished.write_text(json.dumps(target))
    unfinished.rename(paths.venv / STAMP)


def base_python() -> str:
    """Return the Python outside any virtual environment, because the environment's own may be about to be removed."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)
