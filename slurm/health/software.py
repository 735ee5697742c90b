"""software: driver and kernel modules still have the versions that they had at set-up."""

from __future__ import annotations

import re
import shlex

from slurm.health.check import Check, Expected


def judge(output: str, expected: Expected) -> list[str]:
    """Return the components whose file no longer shows the version, given `file<tab>line` for each line."""
    lines = [line.partition("\t")[::2] for line in output.splitlines()]
    return [
        f"{name} is no longer {component['version']}: {path} shows {_quote_first(path, lines)}"
        for name, component in expected.software.items()
        if (path := component["file"]) and not _shows_version(component["version"], path, lines)
    ]


def _shows_version(version: str, path: str, lines: list[tuple[str, str]]) -> bool:
    """Return whether a line of the file has exactly this version: 2.5 is not in 2.5.2."""
    exact = re.compile(rf"(?<![\d.]){re.escape(version)}(?!\.?\d)")
    return any(file == path and exact.search(line) for file, line in lines)


def _quote_first(path: str, lines: list[tuple[str, str]]) -> str:
    return next((f"'{line}'" for file, line in lines if file == path), "nothing")


def _list_files(expected: Expected) -> list[str]:
    return [component["file"] for component in expected.software.values() if component["file"]]


CHECK = Check(
    "software",
    about="driver and kernel modules have the versions of the set-up",
    applies=lambda expected: bool(_list_files(expected)),
    command=lambda expected: (
        f"for file in {shlex.join(_list_files(expected))}; do "
        '[ -r "$file" ] && head -n 20 "$file" | sed "s|^|$file\\t|"; done; true'
    ),
    judge=judge,
    contexts=("gate", "prolog", "periodic"),
    limit_s=20.0,
    blame="node",
    remedies=("rounds", "replace"),
)
