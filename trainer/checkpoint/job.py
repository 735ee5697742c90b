"""One save: the job that the trainer hands to its writer process, and the event that comes back to the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from trainer.checkpoint.fence import Fence
from trainer.checkpoint.folder import partial_path

EventKind = Literal["written", "published", "failed", "restarted"]
"""written: this rank's part is on disk (ranks other than 0). published: all parts are, and a resume finds the
checkpoint (rank 0). failed: this save is lost, the last good checkpoint stays. restarted: there is a new writer."""

_UNFENCED = Fence()


class SaveAbandoned(Exception):
    """Raised if a save fails for a reason outside this process, such as another rank; the message says why."""

    def __init__(self, reason: str, rank: int | None = None) -> None:
        """`rank` is the rank whose part is missing, if there is a single one to name."""
        super().__init__(reason)
        self.rank = rank


@dataclass(frozen=True, kw_only=True)
class SaveJob:
    """A request to the writer process of one rank to write its part of a checkpoint."""

    directory: str
    step: int
    token: str
    rank: int
    world_size: int
    size: int
    """Bytes of the staging buffer that are this rank's shard."""
    texts: Mapping[str, str]
    """Small files to write next to the shard, by name."""
    metric: float | None
    keep: int
    best: str
    discarded: Sequence[int] = ()
    """Steps of checkpoints that were found damaged, or that a rollback has left behind."""
    fence: Fence = _UNFENCED
    """Rank 0's proof that it owns the run folder."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SaveJob:
        """Return the job that `to_dict` described."""
        return cls(**{**values, "fence": Fence(**values["fence"])})

    @property
    def folder(self) -> Path:
        """The folder of all checkpoints."""
        return Path(self.directory)

    @property
    def partial(self) -> Path:
        """The folder in which this save collects its files."""
        return partial_path(self.folder, self.step, self.token)

    @property
    def done_name(self) -> str:
        """The file by which this rank reports that its part is written."""
        return f"done-{self.rank:05d}.json"

    @property
    def failed_name(self) -> str:
        """The file by which this rank reports that its part cannot be written."""
        return f"failed-{self.rank:05d}.json"

    def to_dict(self) -> dict[str, Any]:
        """Return the job as the JSON object that the writer reads."""
        return asdict(self)


@dataclass(frozen=True)
class SaveEvent:
    """The result of a save, or a restart of the writer."""

    kind: EventKind
    step: int
    message: str
    seconds: float = 0.0
    bytes: int = 0
    reason: str = ""
    """Why the save failed."""
    failed_rank: int | None = None
    """The rank whose part could not be written, if a save failed because of a single one."""
