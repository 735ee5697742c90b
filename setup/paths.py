"""Where things are: the repository and the cache that outlives it."""

import os
from dataclasses import dataclass
from pathlib import Path

from setup import pins


@dataclass(frozen=True)
class Paths:
    root: Path
    cache: Path

    @classmethod
    def from_environment(cls) -> "Paths":
        cache = os.environ.get("MUSTER_CACHE") or Path.home() / ".cache" / "muster"
        return cls(root=Path(__file__).resolve().parent.parent, cache=Path(cache).absolute())

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    @property
    def pulumi(self) -> Path:
        return self.cache / "pulumi" / pins.PULUMI

    @property
    def logs(self) -> Path:
        return self.cache / "logs"

    @property
    def scratch(self) -> Path:
        """Half-made things; whatever a killed run left here is removed before the next use."""
        return self.cache / "tmp"
