"""One save, as the trainer hands it to its writer process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoint.folder import partial_path


class Abandoned(Exception):
    """The save came to nothing through no error of this process; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Job:
    directory: str
    step: int
    token: str
    rank: int
    world_size: int
    size: int
    texts: Mapping[str, str]
    metric: float | None
    keep: int
    best: str

    @property
    def folder(self) -> Path:
        return Path(self.directory)

    @property
    def partial(self) -> Path:
        return partial_path(self.folder, self.step, self.token)

    @property
    def done_name(self) -> str:
        return f"done-{self.rank:05d}.json"

    @property
    def failed_name(self) -> str:
        return f"failed-{self.rank:05d}.json"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
