"""A finding of silent corruption: what is wrong, on which rank and host."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.life.cause import Cause
from trainer.life.failure import Failure, name_attempt
from trainer.step import StepAbandoned

_MAX_NAMED = 4


@dataclass(frozen=True, kw_only=True)
class Corruption:
    """Results of the same computation that differ between ranks."""

    step: int
    """Completed steps."""
    what: str
    """What differs: gradients or weights."""
    ranks: tuple[int, ...]
    """The ranks that are wrong; if `is_decided` is False, at least one of them is."""
    hosts: tuple[str, ...]
    """The host of each of these ranks."""
    is_decided: bool
    tensors: tuple[str, ...] = ()
    """Tensors that differ, as far as they are known."""
    is_past: bool = False
    """Whether the state is right again, because it has been computed again since."""
    may_be_decided: bool = False
    """Whether the same steps, repeated, can show which rank is wrong."""

    @property
    def places(self) -> str:
        """The ranks with their hosts."""
        return _list([f"rank {rank} on {host}" for rank, host in zip(self.ranks, self.hosts, strict=True)])

    def __str__(self) -> str:
        named = f" ({_list(self.tensors)})" if self.tensors else ""
        if self.is_decided:
            return f"after step {self.step}: wrong {self.what} on {self.places}{named}"
        return f"after step {self.step}: the {self.what} of {self.places} differ{named}, and which are wrong is unknown"

    def describe_failure(self) -> Failure:
        """Return the corruption as the failure of the first rank that is wrong."""
        return Failure(
            time=round(time.time(), 3),
            attempt=name_attempt(),
            rank=self.ranks[0],
            host=self.hosts[0],
            step=self.step,
            cause=Cause.CORRUPTION,
            error=str(self),
        )


class CorruptionDetected(StepAbandoned):
    """Raised on all ranks at the same place, with what they have agreed on; a step under way is given up."""

    def __init__(self, corruption: Corruption) -> None:
        super().__init__(str(corruption))
        self.corruption = corruption


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
