"""Which Linux distribution this is."""

import shlex
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Distribution:
    name: str
    codename: str
    title: str
    debian_like: bool


def distribution(path: Path = Path("/etc/os-release")) -> Distribution:
    return parse(path.read_text() if path.is_file() else "")


def parse(text: str) -> Distribution:
    fields = dict(word.split("=", 1) for word in shlex.split(text, comments=True) if "=" in word)
    name = fields.get("ID", "unknown")
    return Distribution(
        name=name,
        codename=fields.get("VERSION_CODENAME", ""),
        title=fields.get("PRETTY_NAME", name),
        debian_like=name in ("debian", "ubuntu") or bool({"debian", "ubuntu"} & set(fields.get("ID_LIKE", "").split())),
    )
