"""`make lint`: run ruff, mypy, shellcheck and the audits of what is pinned; print failures and the time of each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from setup.paths import Paths

REPO = Path(__file__).resolve().parent.parent
# Linters that run at the same time: mypy takes as long as all others together.
PARALLEL = 2
AUDIT = "pip-audit"
_SHEBANG = re.compile(rb"^#!.*\b(ba|da|)sh\b")
_SUFFIXES = (".sh", ".sbatch")


def checks(*, audit: bool = True) -> dict[str, list[str]]:
    """Return the command of each linter; without `audit`, only those that need no connection."""
    tools = REPO / ".venv" / "bin"
    commands = {
        "ruff check": [str(tools / "ruff"), "check", "--quiet", "--output-format", "concise", "."],
        "ruff format": [str(tools / "ruff"), "format", "--check", "--quiet", "."],
        # pyproject.toml lists the packages and the strictness.
        "mypy": [str(tools / "mypy"), "--cache-dir", str(mypy_cache())],
        "shellcheck": ["shellcheck", *scripts()],
        "CVE table": [str(tools / "python"), "-m", "release.cves"],
        AUDIT: [str(tools / "python"), "-m", "release.audit"],
    }
    return commands if audit else {name: command for name, command in commands.items() if name != AUDIT}


def mypy_cache() -> Path:
    """Return the folder of mypy's cache, which a new clone in the place of an old one finds: it saves 40 s."""
    return Paths.from_environment().cache / "mypy" / sha256(str(REPO).encode()).hexdigest()[:16]


def scripts() -> list[str]:
    """Return every shell script of the repository, recognized by its name or its first line."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=REPO, text=True, capture_output=True, check=True
    )
    return [name for name in sorted(listed.stdout.splitlines()) if is_script(REPO / name)]


def is_script(path: Path) -> bool:
    """Tell whether a file is a shell script."""
    if not path.is_file():
        return False
    if path.suffix in _SUFFIXES:
        return True
    with path.open("rb") as file:
        return _SHEBANG.match(file.readline(100)) is not None


def main(*, audit: bool = True) -> tuple[int, int, int]:
    """Run all linters and return how many passed, failed and could not run."""
    commands = checks(audit=audit)
    with ThreadPoolExecutor(PARALLEL) as pool:
        results = dict(zip(commands, pool.map(run, commands.values()), strict=True))
    for name, (code, seconds, output) in results.items():
        print(f"{name:<13} {_judge(name, code):<7} {seconds:5.1f} s", flush=True)
        if code != 0:
            print(output.rstrip(), flush=True)
    verdicts = [_judge(name, code) for name, (code, _, _) in results.items()]
    return verdicts.count("ok"), verdicts.count("FAILED"), verdicts.count("NOT RUN")


def run(command: list[str]) -> tuple[int, float, str]:
    """Run a linter and return its exit code, seconds and output."""
    started_at = time.monotonic()
    done = subprocess.run(command, cwd=REPO, text=True, capture_output=True, check=False)
    return done.returncode, time.monotonic() - started_at, done.stdout + done.stderr


def _judge(name: str, code: int) -> str:
    # The audit's code if its database does not answer, unless MUSTER_AUDIT=required; of other linters it is a failure.
    if name == AUDIT and code == os.EX_TEMPFAIL:
        return "NOT RUN"
    return "FAILED" if code else "ok"


if __name__ == "__main__":
    sys.exit(min(main()[1], 1))
