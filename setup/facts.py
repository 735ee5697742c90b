"""What is known about the machine before anything is started: data only, gathered elsewhere."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from setup.engine import Engine


@dataclass(frozen=True)
class Disk:
    """A place that setup writes to: where it is, which file system that is, and what is free there."""

    path: str
    device: int
    free_gb: float


@dataclass(frozen=True)
class Facts:
    system: str
    machine: str
    root: bool
    debian: bool
    distribution: str
    python: str
    memory_mb: int
    engine: Engine
    # Whether any phase that was asked for works with the engine.
    uses_engine: bool = True
    # Phases that have work to do, and those that cannot be judged before the engine runs.
    missing: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()
    # Commands and Python modules of apt.PROVIDERS that the machine lacks.
    lacking: frozenset[str] = frozenset()
    disks: Mapping[str, Disk] = field(default_factory=dict)
    # Which sources (apt, python, go, release, base) answered over the network; only what is needed is asked.
    reach: Mapping[str, bool] = field(default_factory=dict)

    @property
    def can_install(self) -> bool:
        return self.root and self.debian

    @property
    def builds_pulumi(self) -> bool:
        return "pulumi" in self.missing and not self.reach.get("release", False)

    def with_reach(self, more: Mapping[str, bool]) -> "Facts":
        return replace(self, reach={**self.reach, **more})
