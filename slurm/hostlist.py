"""Hostlists, Slurm's short form of a list of names: gpu-1, gpu-2 and gpu-4 are gpu-[1-2,4]."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby


def hostlist(names: Iterable[str]) -> str:
    """Return the hostlist of names; device paths work too."""
    numbered: dict[str, list[int]] = {}
    plain: list[str] = []
    for name in names:
        match = re.fullmatch(r"(.*?)(0|[1-9]\d*)", name)
        if match:
            numbered.setdefault(match[1], []).append(int(match[2]))
        else:
            plain.append(name)
    return ",".join([*plain, *(_write_part(prefix, ns) for prefix, ns in numbered.items())])


def expand(short: str) -> tuple[str, ...]:
    """Return the names of a hostlist in its order."""
    return tuple(name for part in re.findall(r"([^,\[\]]+(?:\[[^\]]*\])?)", short) for name in _read_part(part))


def ranges(numbers: Iterable[int]) -> list[str]:
    """Return numbers as ranges: 1, 2, 3 and 7 are `1-3` and `7`."""
    ordered = sorted(set(numbers))
    runs = [[n for _, n in run] for _, run in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0])]
    return [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]


def _write_part(prefix: str, numbers: list[int]) -> str:
    short = ranges(numbers)
    return f"{prefix}{short[0]}" if len(short) == 1 and "-" not in short[0] else f"{prefix}[{','.join(short)}]"


def _read_part(part: str) -> Iterator[str]:
    match = re.fullmatch(r"(.*)\[(.*)\]", part)
    if not match:
        yield part
        return
    for part_range in match[2].split(","):
        first, _, last = part_range.partition("-")
        # slurmctld pads numbers with zeros if they were given with zeros.
        yield from (f"{match[1]}{n:0{len(first)}d}" for n in range(int(first), int(last or first) + 1))
