"""nvlink: every GPU has all its links to other GPUs."""

from __future__ import annotations

import re

from slurm.health.check import Check, Expected

_GPU = re.compile(r"^GPU (\d+):")
_LINK = re.compile(r"^\s+Link \d+: [\d.]+ GB/s")


def judge(output: str, expected: Expected) -> list[str]:
    """Return GPUs that are not listed or lack links."""
    links: dict[int, int] = {}
    current = None
    for line in output.splitlines():
        if match := _GPU.match(line):
            current = int(match[1])
            links[current] = 0
        elif current is not None and _LINK.match(line):
            links[current] += 1
    unlisted = expected.gpus - len(links)
    missing = [f"{'1 GPU is' if unlisted == 1 else f'{unlisted} GPUs are'} not listed"] if unlisted > 0 else []
    return missing + [
        f"GPU {gpu} has {count} of {expected.nvlinks} links" for gpu, count in links.items() if count < expected.nvlinks
    ]


CHECK = Check(
    "nvlink",
    about="every GPU has all its NVLink links",
    applies=lambda expected: expected.nvlinks > 0,
    command=lambda _: "nvidia-smi nvlink --status",
    judge=judge,
    contexts=("gate", "prolog", "periodic"),
    limit_s=20.0,
    blame="node",
    remedies=("rounds", "reset", "reboot", "replace"),
)
