"""Install the packages of a lock file from wheels by unpacking them, which takes a tenth of the time that pip takes.

Every machine does this when it boots. Plain Python without packages: it runs before there are any. The checksum of the
bundle covers the wheels, so theirs are not checked again.

Usage: `python unpack_wheels.py WHEELS LOCK ENVIRONMENT`.
"""

from __future__ import annotations

import re
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from pathlib import Path

_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)
Version = tuple[int, int]


class MissingWheelError(ValueError):
    """There is no wheel of a package for this Python."""


def list_packages(lock: str) -> list[tuple[str, str]]:
    """Return name and version of each package of a lock file."""
    return _PINNED.findall(lock)


def select_wheels(wheels: Iterable[str], packages: Iterable[tuple[str, str]], python: Version) -> list[str]:
    """Return the wheel of each package that fits a version of Python; raise MissingWheelError if there is none."""
    by_package: dict[tuple[str, str], list[str]] = {}
    for wheel in wheels:
        name, version, *_ = wheel.split("-")
        by_package.setdefault((_normalize(name), version), []).append(wheel)
    selected = []
    for name, version in packages:
        present = by_package.get((_normalize(name), version), [])
        fitting = next((wheel for wheel in present if _fits(wheel, python)), None)
        if fitting is None:
            allowed = ", ".join(sorted(present)) or "none"
            what = f"no wheel of {name} {version} for Python {python[0]}.{python[1]}; wheels of it: {allowed}"
            raise MissingWheelError(what)
        selected.append(fitting)
    return selected


def _fits(wheel: str, python: Version) -> bool:
    """Return whether a wheel is for this Python; all wheels of a bundle are for the same kind of machine."""
    interpreters, abi = wheel.split("-")[-3:-1]
    own = f"cp{python[0]}{python[1]}"
    return ("py3" in interpreters.split(".") and abi == "none") or (own in interpreters.split(".") and abi == own)


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def main(wheels: str, lock: str, environment: str) -> int:
    """Unpack the wheels into an environment and return the exit code."""
    scheme = {"base": environment, "platbase": environment}
    folder = sysconfig.get_path("purelib", "venv", vars=scheme)
    packages = list_packages(Path(lock).read_text())
    names = [path.name for path in Path(wheels).glob("*.whl")]
    try:
        for wheel in select_wheels(names, packages, sys.version_info[:2]):
            with zipfile.ZipFile(Path(wheels) / wheel) as archive:
                archive.extractall(folder)
    except MissingWheelError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
