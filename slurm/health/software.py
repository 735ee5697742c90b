"""software: driver and kernel modules are still those that the node was set up with."""

from __future__ import annotations

import re
import shlex

from slurm.health.check import Check, Expected


def judge(output: str, expected: Expected) -> list[str]:
    found = [line.partition("\t")[::2] for line in output.splitlines()]
    return [
        f"{name} is no longer {known['version']}: {path} says {_said(path, found)}"
        for name, known in expected.software.items()
        if (path := known["file"]) and not _there(known["version"], path, found)
    ]


def _there(version: str, path: str, found: list[tuple[str, str]]) -> bool:
    """As a whole: 2.5 is not in 2.5.2."""
    whole = re.compile(rf"(?<![\d.]){re.escape(version)}(?!\.?\d)")
    return any(file == path and whole.search(line) for file, line in found)


def _said(path: str, found: list[tuple[str, str]]) -> str:
    return next((f"'{line}'" for file, line in found if file == path), "nothing")


def _files(expected: Expected) -> list[str]:
    return [known["file"] for known in expected.software.values() if known["file"]]


CHECK = Check(
    "software",
    applies=lambda expected: bool(_files(expected)),
    command=lambda expected: (
        f"for file in {shlex.join(_files(expected))}; do "
        '[ -r "$file" ] && head -n 20 "$file" | sed "s|^|$file\\t|"; done; true'
    ),
    judge=judge,
)
