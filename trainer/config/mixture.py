"""The entries of data.mixture: a path and a weight each."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from trainer.config.errors import ConfigProblem

_WHERE = "data.mixture"
# Parts of an address that may be secret: user and password, and what follows the path.
_SECRETS = re.compile(r"(?<=://)[^/]*@|(?<=[?#]).*")


@dataclass(frozen=True)
class MixtureEntry:
    """An entry of data.mixture."""

    path: str
    weight: float


def parse_mixture(entries: Sequence[str]) -> list[MixtureEntry | ConfigProblem]:
    """Return each entry of data.mixture, or what is wrong with it."""
    parsed = [_parse_entry(text) for text in entries]
    paths = Counter(PurePath(entry.path) for entry in parsed if isinstance(entry, MixtureEntry))
    repeated = [
        ConfigProblem(_WHERE, f"{path} is listed {count} times", "list it once, with the sum of its weights")
        for path, count in ((_hide_secrets(str(path)), count) for path, count in paths.items())
        if count > 1
    ]
    return [*parsed, *repeated]


def name_sources(paths: Sequence[str]) -> list[str]:
    """Return a short name for each path: its last part, or the whole path where others end in the same way."""
    names = [PurePath(path).name for path in paths]
    return [name if name and names.count(name) == 1 else path for name, path in zip(names, paths, strict=True)]


def _parse_entry(text: str) -> MixtureEntry | ConfigProblem:
    path, _, number = text.rpartition("=")
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if path.strip() and math.isfinite(weight) and weight > 0:
        return MixtureEntry(path, weight)
    message = f"{_hide_secrets(text)!r} is not PATH=WEIGHT with a weight above 0"
    return ConfigProblem(_WHERE, message, "write entries such as ~/web=0.7, and leave out sources that are not used")


def _hide_secrets(text: str) -> str:
    return _SECRETS.sub("...", text) if "://" in text else text
