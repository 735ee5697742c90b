"""The repository's virtual environment, exactly what requirements.lock says, with muster itself installed editable."""

import hashlib
import json
import shutil
import sys
from pathlib import Path

from setup.facts import Facts
from setup.paths import Paths
from setup.run import run

STAMP = "muster.json"
QUIET = ("--progress-bar", "off", "--disable-pip-version-check")


def wanted(paths: Paths) -> dict[str, str]:
    """What the stamp must say: the same lock for the same Python in the same place, and the same project file.

    The place counts because the programs in the environment name it: a copy would run the code it was copied from.
    """
    lock = (paths.root / "requirements.lock").read_bytes()
    python = f"{sys.base_prefix} {sys.version_info.major}.{sys.version_info.minor} {paths.root}"
    return {
        "packages": hashlib.sha256(lock + python.encode()).hexdigest(),
        "project": hashlib.sha256((paths.root / "pyproject.toml").read_bytes()).hexdigest(),
    }


def cached(paths: Paths) -> bool:
    return stamp(paths) == wanted(paths)


def stamp(paths: Paths) -> dict[str, str]:
    """What was last finished; empty when nothing was."""
    try:
        content = json.loads((paths.venv / STAMP).read_text())
    except (OSError, ValueError):
        return {}
    return content if (paths.venv / "bin" / "python").exists() else {}


def act(paths: Paths, _: Facts, log: Path) -> None:
    target = wanted(paths)
    python = paths.venv / "bin" / "python"
    current = stamp(paths)
    (paths.venv / STAMP).unlink(missing_ok=True)
    if current.get("packages") != target["packages"]:
        shutil.rmtree(paths.venv, ignore_errors=True)
        run([base_python(), "-m", "venv", paths.venv], log)
        run([python, "-m", "pip", "install", *QUIET, "--require-hashes", "-r", paths.root / "requirements.lock"], log)
    run([python, "-m", "pip", "install", *QUIET, "--no-deps", "--no-build-isolation", "-e", paths.root], log)
    unfinished = paths.venv / f"{STAMP}.new"
    unfinished.write_text(json.dumps(target))
    unfinished.rename(paths.venv / STAMP)


def base_python() -> str:
    """Never the environment's own Python: it may be about to be removed."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)
