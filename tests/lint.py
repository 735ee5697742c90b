"""`make lint`: ruff, mypy and shellcheck over everything that is ours; says what failed and how long each took."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
STRICT = ("cluster", "infra", "muster", "bootstrap", "slurm", "setup")
# Torch is not installed here, so all of it is Any to the checker.
WITHOUT_TORCH = (
    "--allow-subclassing-any",
    "--allow-untyped-decorators",
    "--allow-untyped-calls",
    "--no-warn-return-any",
    "--no-warn-unused-ignores",
)
_SHEBANG = re.compile(rb"^#!.*\b(ba|da|)sh\b")
_SUFFIXES = (".sh", ".sbatch")


def checks() -> dict[str, list[str]]:
    tools = REPO / ".venv" / "bin"
    return {
        "ruff check": [str(tools / "ruff"), "check", "--quiet", "--output-format", "concise", "."],
        "ruff format": [str(tools / "ruff"), "format", "--check", "--quiet", "."],
        "mypy": [str(tools / "mypy"), "--strict", *STRICT],
        "mypy trainer": [str(tools / "mypy"), "--strict", *WITHOUT_TORCH, "trainer", "simulator"],
        "shellcheck": ["shellcheck", *scripts()],
    }


def scripts() -> list[str]:
    """Every shell script of the repository, by name or by its first line."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=REPO, text=True, capture_output=True, check=True
    )
    return [name for name in sorted(listed.stdout.splitlines()) if is_script(REPO / name)]


def is_script(path: Path) -> bool:
    if not path.is_file():
        return False
    if path.suffix in _SUFFIXES:
        return True
    with path.open("rb") as file:
        return _SHEBANG.match(file.readline(100)) is not None


def main() -> tuple[int, int]:
    """(passed, failed)"""
    failed = 0
    everything = checks()
    for name, command in everything.items():
        began = time.monotonic()
        done = subprocess.run(command, cwd=REPO, text=True, capture_output=True, check=False)
        mark = "ok" if done.returncode == 0 else "FAILED"
        print(f"{name:<13} {mark:<7} {time.monotonic() - began:5.1f} s", flush=True)
        if done.returncode != 0:
            failed += 1
            print((done.stdout + done.stderr).rstrip(), flush=True)
    return len(everything) - failed, failed


if __name__ == "__main__":
    sys.exit(min(main()[1], 1))
