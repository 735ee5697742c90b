"""The facts about the machine that setup reads before it starts anything, as plain data; setup/gather.py reads them."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

EngineState = Literal["running", "stopped", "absent", "denied", "unreachable", "remote"]


@dataclass(frozen=True)
class Engine:
    """The Docker engine as its client sees it from here."""

    state: EngineState
    detail: str = ""
    rootless: bool = False
    desktop: bool = False
    data: Path = Path("/var/lib/docker")


@dataclass(frozen=True)
class Disk:
    """A path that setup writes to, the file system it is on, and the free space there."""

    path: str
    device: int
    free_gb: float


@dataclass(frozen=True)
class Distribution:
    """The Linux distribution of this machine, from os-release."""

    name: str
    codename: str
    title: str
    debian_like: bool


def read_distribution(path: Path = Path("/etc/os-release")) -> Distribution:
    """Return the distribution that an os-release file describes."""
    return parse_os_release(path.read_text() if path.is_file() else "")


def parse_os_release(text: str) -> Distribution:
    """Return the distribution that the text of an os-release file describes."""
    fields = dict(assignment.split("=", 1) for assignment in shlex.split(text, comments=True) if "=" in assignment)
    name = fields.get("ID", "unknown")
    return Distribution(
        name=name,
        codename=fields.get("VERSION_CODENAME", ""),
        title=fields.get("PRETTY_NAME", name),
        debian_like=name in ("debian", "ubuntu") or bool({"debian", "ubuntu"} & set(fields.get("ID_LIKE", "").split())),
    )


@dataclass(frozen=True)
class Facts:
    """The machine, and which of the requested phases have work to do on it."""

    system: str
    machine: str
    root: bool
    debian: bool
    distribution: str
    python: str
    memory_mb: int
    engine: Engine
    uses_engine: bool = True
    """Whether any requested phase works with the Docker engine."""
    missing: frozenset[str] = frozenset()
    """Phases that have work to do."""
    unknown: frozenset[str] = frozenset()
    """Phases that can only be checked once the Docker engine runs."""
    lacking: frozenset[str] = frozenset()
    """Commands of `apt.PROVIDERS`, and `ensurepip`, that are not installed."""
    new_go: bool = False
    """Whether an installed Go can build Pulumi as it is."""
    disks: Mapping[str, Disk] = field(default_factory=dict)
    reach: Mapping[str, bool] = field(default_factory=dict)
    """Whether each needed download source (apt, python, go, release, base) answered."""

    @property
    def can_install(self) -> bool:
        return self.root and self.debian

    @property
    def builds_pulumi(self) -> bool:
        return "pulumi" in self.missing and not self.reach.get("release", False)

    def with_reach(self, more: Mapping[str, bool]) -> "Facts":
        return replace(self, reach={**self.reach, **more})
